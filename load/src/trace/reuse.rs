//! What caches of unlimited size find in a trace: a count, without a server or a model.

use std::collections::HashSet;

use tributary_charts::table::{Layout, cells, table};
use tributary_protocol::PIECE_ROWS;

use super::blocks::Blocks;
use super::{Part, Trace, TraceRequest};

/// Tokens of a trace that a cache has from earlier requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Tokens of all documents.
    pub document_tokens: usize,
    /// Prompt tokens in an exact prefix cache, in whole pieces of [`PIECE_ROWS`].
    pub prefix: usize,
    /// The same, where each request's documents come in the order of which most is cached.
    pub ordered_prefix: usize,
    /// Document tokens in a cache of chunks that are prefilled after the whole system text.
    pub after_system: usize,
    /// The same, after the first part of the system text.
    pub after_first_part: usize,
    /// The same, after a head that all requests share.
    pub after_head: usize,
}

impl Reuse {
    /// A table for people.
    pub fn text(&self, trace: &Trace) -> String {
        let share = |tokens: usize, of: usize| format!("{:.1} %", 100.0 * tokens as f64 / of.max(1) as f64);
        let Self { prompt_tokens: prompt, document_tokens: documents, .. } = *self;
        let line = |name: &str, tokens: usize, of_documents: bool| {
            let of_documents = if of_documents { share(tokens, documents) } else { "-".to_owned() };
            cells([name, &share(tokens, prompt), &of_documents])
        };
        let rows = [
            cells(["cache of unlimited size", "of prompt tokens", "of document tokens"]),
            line(&format!("exact prefix, in pieces of {PIECE_ROWS} tokens"), self.prefix, false),
            line("the same, documents in the order of which most is cached", self.ordered_prefix, false),
            line("documents after the whole system text (--chunk-prefix system)", self.after_system, true),
            line("documents after the first part of the system text", self.after_first_part, true),
            line("documents after a head that all share (--chunk-prefix head)", self.after_head, true),
        ];
        let count = trace.requests.len();
        let title = format!("# {count} requests, {prompt} tokens in prompts, {documents} of them in documents\n");
        title + &table(&rows, Layout { left: &[0], commented_rows: Some(1) })
    }
}

/// Counts what each kind of cache finds.
pub fn reuse(trace: &Trace) -> Reuse {
    let mut sum = Reuse::default();
    let (mut chunks, mut prefix, mut ordered) = (Chunks::default(), Prefixes::default(), Prefixes::default());
    for request in &trace.requests {
        sum.prompt_tokens += request.prompt_tokens();
        sum.document_tokens += request.documents.iter().map(|part| part.tokens).sum::<usize>();
        sum.prefix += prefix.find(request);
        sum.ordered_prefix += ordered.find(&ordered.ordered(request));
        let ids: Vec<u64> = request.system.iter().map(|part| part.id).collect();
        sum.after_system += chunks.find(&ids, request);
        sum.after_first_part += chunks.find(&[&[u64::MAX], &ids[..ids.len().min(1)]].concat(), request);
        sum.after_head += chunks.find(&[u64::MAX - 1], request);
    }
    sum
}

/// Chunks by what they were prefilled after.
#[derive(Default)]
struct Chunks(HashSet<(Vec<u64>, u64)>);

impl Chunks {
    /// Tokens of documents that are there; then all are.
    fn find(&mut self, after: &[u64], request: &TraceRequest) -> usize {
        let key = |part: &Part| (after.to_vec(), part.id);
        let found = request.documents.iter().filter(|part| self.0.contains(&key(part)));
        let tokens = found.map(|part| part.tokens).sum();
        self.0.extend(request.documents.iter().map(key));
        tokens
    }
}

/// Pieces of earlier prompts.
#[derive(Default)]
struct Prefixes(Blocks);

impl Prefixes {
    /// Tokens of these parts that are there from the first on.
    fn reach<'a>(&self, parts: impl Iterator<Item = &'a Part>) -> usize {
        self.0.known(parts, PIECE_ROWS).len() * PIECE_ROWS
    }

    /// Tokens of the prompt that are there; then all are.
    fn find(&mut self, request: &TraceRequest) -> usize {
        let found = self.reach(request.parts());
        self.0.name(request.parts(), PIECE_ROWS);
        // Of the same prompt again the last token is computed.
        found.min(request.prompt_tokens().saturating_sub(1))
    }

    /// The request with its documents in the order of which most is there: one after the other, the
    /// one with which most more is; the rest in its own order.
    fn ordered(&self, request: &TraceRequest) -> TraceRequest {
        let (mut chosen, mut left) = (Vec::new(), request.documents.clone());
        let reach = |documents: &[Part]| self.reach(request.system.iter().chain(documents));
        loop {
            let before: usize = request.system.iter().chain(&chosen).map(|part: &Part| part.tokens).sum();
            let with = left.iter().enumerate().map(|(index, part)| (reach(&[&chosen[..], &[*part]].concat()), index));
            let best = with.max_by_key(|&(tokens, index)| (tokens, std::cmp::Reverse(index)));
            let Some((_, index)) = best.filter(|(tokens, _)| *tokens > before) else { break };
            chosen.push(left.remove(index));
        }
        TraceRequest { documents: [chosen, left].concat(), ..request.clone() }
    }
}
