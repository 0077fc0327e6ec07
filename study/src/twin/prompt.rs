//! Prompts of a trace's requests as token ids: equal identities are equal tokens.

use tributary_coordinator::{ChunkPrefix, Cutting, TEXT_CHUNK_TOKENS, lead_pieces, text_chunks};
use tributary_load::{Part, TraceRequest};
use tributary_planner::{ModelShape, RequestSettings, Tokens};
use tributary_protocol::SplitMix64;

/// Identity of the head, which no part of a trace has.
const HEAD: u64 = u64::MAX;

/// The service's reading of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// Settings of a request, but for the length of its answer.
    pub settings: RequestSettings,
    /// Tokens with which every prompt begins.
    pub head_tokens: usize,
    /// The tokens that chunks are prefilled after.
    pub chunk_prefix: ChunkPrefix,
}

impl Reading {
    /// A request's tokens and settings.
    pub fn prompt(&self, request: &TraceRequest, shape: &ModelShape) -> (Tokens, RequestSettings) {
        let ids = |parts: &[Part]| {
            let mut ids = Vec::with_capacity(parts.iter().map(|part| part.tokens).sum());
            parts.iter().for_each(|part| fill(&mut ids, *part, shape.vocab));
            ids
        };
        let head = Part { id: HEAD, tokens: self.head_tokens };
        let prefix = ids(&[&[head], &request.system[..]].concat());
        let mut query = ids(&request.rest);
        let mut chunks: Vec<Vec<u32>> = request.documents.iter().map(|part| ids(&[*part])).collect();
        let mut settings = RequestSettings { max_tokens: request.output_tokens.max(1), ..self.settings.clone() };
        if chunks.is_empty() && query.len() > 1 {
            let (pieces, rest) = text_chunks(query, Cutting::Content(TEXT_CHUNK_TOKENS), &[]).expect("it has tokens");
            (chunks, query) = (pieces.into_iter().map(|piece| piece.ids).collect(), rest);
        }
        if query.is_empty() {
            fill(&mut query, Part { id: HEAD - 1, tokens: 1 }, shape.vocab);
        }
        let is_one = chunks.len() <= 1 && request.documents.is_empty();
        if chunks.is_empty() || (is_one && settings.method.selects()) {
            settings = settings.without_context();
            query = [prefix, chunks.concat(), query].concat();
            return (Tokens { query, ..Tokens::default() }, settings);
        }
        let lead = self.lead(prefix.len());
        (Tokens { prefix, lead, chunks, query, ..Tokens::default() }, settings)
    }

    /// Tokens of each piece of the lead of a prefix.
    fn lead(&self, prefix_tokens: usize) -> Vec<u32> {
        match self.chunk_prefix {
            ChunkPrefix::System => Vec::new(),
            ChunkPrefix::Head { more } => {
                let before = self.head_tokens.max(1).saturating_add(more).min(prefix_tokens);
                lead_pieces(before, prefix_tokens, &[])
            }
        }
    }
}

/// Adds a part's tokens, which follow from its identity: a stream of numbers.
fn fill(ids: &mut Vec<u32>, part: Part, vocab: usize) {
    let mut random = SplitMix64::new(part.id);
    // The upper half of a product with the vocabulary's size is below it.
    ids.extend((0..part.tokens).map(|_| (((random.draw() >> 32) * vocab.max(1) as u64) >> 32) as u32));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_protocol::Method;

    const LLAMA: &str = "llama-3.1-8b";

    fn part(id: u64, tokens: usize) -> Part {
        Part { id, tokens }
    }

    fn reading(method: &str, chunk_prefix: ChunkPrefix) -> Reading {
        let method = Method::named(method).expect("a method");
        let settings = RequestSettings { method, keep_chunks: true, ..RequestSettings::default() };
        Reading { settings, head_tokens: 2, chunk_prefix }
    }

    fn request(system: &[Part], documents: &[Part], rest: &[Part]) -> TraceRequest {
        let (system, documents, rest) = (system.to_vec(), documents.to_vec(), rest.to_vec());
        TraceRequest { at_s: 0.0, output_tokens: 3, system, documents, rest }
    }

    #[test]
    fn equal_identities_are_equal_tokens_below_the_vocabulary() {
        let shape = ModelShape { vocab: 100, ..ModelShape::named(LLAMA).expect("a shape") };
        let asked = request(&[part(1, 300)], &[part(7, 40), part(8, 40), part(7, 40)], &[part(9, 5)]);
        let (tokens, settings) = reading("infoflow", ChunkPrefix::System).prompt(&asked, &shape);
        assert_eq!((tokens.chunks[0] == tokens.chunks[2], tokens.chunks[0] == tokens.chunks[1]), (true, false));
        assert_eq!((tokens.prefix.len(), tokens.query.len(), settings.max_tokens), (302, 5, 3));
        let mut all = tokens.prefix.iter().chain(tokens.chunks.iter().flatten()).chain(&tokens.query);
        assert!(tokens.lead.is_empty() && all.all(|id| *id < 100));
        let led = |chunk_prefix| reading("infoflow", chunk_prefix).prompt(&asked, &shape).0.lead;
        assert_eq!(led(ChunkPrefix::Head { more: 0 }), [256, 44]);
        assert_eq!(led(ChunkPrefix::Head { more: 290 }), [10]);
    }

    #[test]
    fn a_short_text_without_documents_is_one_exact_prompt_and_a_long_one_is_cut() {
        let shape = ModelShape::named(LLAMA).expect("a shape");
        let of = |method: &str, tokens: usize| {
            let asked = request(&[], &[], &[part(1, tokens)]);
            reading(method, ChunkPrefix::System).prompt(&asked, &shape)
        };
        let (short, settings) = of("infoflow", 2000);
        assert_eq!((short.chunks.len(), short.query.len(), settings.method.name), (0, 2002, "prefix-cache"));
        let (long, settings) = of("infoflow", 5000);
        let cut: usize = long.chunks.iter().map(Vec::len).sum();
        assert_eq!((cut, long.query.len(), settings.method.name), (5000 - 32, 32, "infoflow"));
        assert!(long.chunks.len() > 2, "by its content");
        assert_eq!(of("infoflow", 1).0.query.len(), 3, "a single token is a query");
    }
}
