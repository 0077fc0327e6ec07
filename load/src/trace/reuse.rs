//! What caches find in a trace: a count, without a server or a model. Caches of limited size keep
//! documents by the policy of the ranks.

use tributary_charts::table::{Layout, cells, table};
use tributary_protocol::{CacheEntries, ChunkKey, KeySpace, PIECE_ROWS};

use super::blocks::Blocks;
use super::{Part, Trace, TraceRequest};

/// Tokens of a trace that a cache has from earlier requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Documents of all prompts.
    pub documents: Found,
    /// Prompt tokens in an exact prefix cache, in whole pieces of [`PIECE_ROWS`].
    pub prefix: usize,
    /// The same, where each request's documents come in the order of which most is cached.
    pub ordered_prefix: usize,
    /// Documents in caches of chunks of unlimited size.
    pub unlimited: Documents,
    /// The same in caches of so many tokens, where the least recently used documents go first.
    pub bounded: Vec<(u64, Documents)>,
}

/// Documents in caches of chunks, by what the chunks are prefilled after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Documents {
    /// The whole system text.
    pub after_system: Found,
    /// The first part of the system text.
    pub after_first_part: Found,
    /// A head that all requests share.
    pub after_head: Found,
}

/// Documents, each as often as requests have it, and their tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of documents.
    pub count: usize,
    /// Their tokens.
    pub tokens: usize,
}

impl Found {
    fn add(&mut self, part: &Part) {
        self.count += 1;
        self.tokens += part.tokens;
    }
}

fn share(found: usize, of: usize) -> String {
    format!("{:.1} %", 100.0 * found as f64 / of.max(1) as f64)
}

impl Reuse {
    /// Tables for people.
    pub fn text(&self, trace: &Trace) -> String {
        let (prompt, all) = (self.prompt_tokens, self.documents);
        let of_prompts = |name: &str, tokens: usize| cells([name, &share(tokens, prompt), "-", "-"]);
        let of_documents = |name: &str, found: Found| {
            let shares = [share(found.tokens, prompt), share(found.tokens, all.tokens), share(found.count, all.count)];
            cells([name, &shares[0], &shares[1], &shares[2]])
        };
        let Documents { after_system, after_first_part, after_head } = self.unlimited;
        let rows = [
            cells(["cache of unlimited size", "of prompt tokens", "of document tokens", "of documents"]),
            of_prompts(&format!("exact prefix, in pieces of {PIECE_ROWS} tokens"), self.prefix),
            of_prompts("the same, documents in the order of which most is cached", self.ordered_prefix),
            of_documents("documents after the whole system text (--chunk-prefix system)", after_system),
            of_documents("documents after the first part of the system text", after_first_part),
            of_documents("documents after a head that all share (--chunk-prefix head)", after_head),
        ];
        let (count, tokens) = (trace.requests.len(), all.tokens);
        let title = format!("# {count} requests, {prompt} tokens in prompts, {tokens} of them in documents\n");
        let layout = || Layout { left: &[0], commented_rows: Some(1) };
        let unlimited = title + &table(&rows, layout());
        if self.bounded.is_empty() { unlimited } else { unlimited + "\n" + &table(&self.bounded_rows(), layout()) }
    }

    /// Rows of caches of limited size, with the unlimited one below.
    fn bounded_rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, found: &Documents| {
            let of_tokens = |found: Found| share(found.tokens, self.documents.tokens);
            let Documents { after_system, after_first_part, after_head } = *found;
            let tokens = [after_system, after_first_part, after_head].map(of_tokens);
            cells([name, &tokens[0], &tokens[1], &tokens[2], &share(after_head.count, self.documents.count)])
        };
        let head =
            ["cache size in tokens", "after system text", "after its first part", "after a head", "of documents"];
        let bounded = self.bounded.iter().map(|(tokens, found)| row(&tokens.to_string(), found));
        std::iter::once(cells(head)).chain(bounded).chain([row("unlimited", &self.unlimited)]).collect()
    }
}

/// Counts what each kind of cache finds: caches of unlimited size, and of each of these sizes in
/// tokens.
pub fn reuse(trace: &Trace, sizes: &[u64]) -> Reuse {
    let mut sum = Reuse::default();
    let (mut prefix, mut ordered, mut unlimited) = (Prefixes::default(), Prefixes::default(), Caches::new(u64::MAX));
    let mut bounded: Vec<Caches> = sizes.iter().map(|&tokens| Caches::new(tokens)).collect();
    let space = KeySpace::new([0; 32], "trace");
    for request in &trace.requests {
        sum.prompt_tokens += request.prompt_tokens();
        request.documents.iter().for_each(|part| sum.documents.add(part));
        sum.prefix += prefix.find(request);
        sum.ordered_prefix += ordered.find(&ordered.ordered(request));
        let names = names(&space, request);
        bounded.iter_mut().chain([&mut unlimited]).for_each(|caches| caches.find(&names, request));
    }
    sum.unlimited = unlimited.found();
    sum.bounded = sizes.iter().copied().zip(bounded.iter().map(Caches::found)).collect();
    sum
}

/// Names of a request's documents after the whole system text, its first part, and a head.
fn names(space: &KeySpace, request: &TraceRequest) -> [Vec<ChunkKey>; 3] {
    let after = |kind: u8, parts: &[Part]| {
        let before = parts.iter().flat_map(|part| part.id.to_le_bytes());
        let before: Vec<u8> = std::iter::once(kind).chain(before).collect();
        let name = |part: &Part| space.chunk(&[], &[], &[&before[..], &part.id.to_le_bytes()].concat());
        request.documents.iter().map(name).collect()
    };
    let system = &request.system;
    [after(0, system), after(1, &system[..system.len().min(1)]), after(2, &[])]
}

/// Caches of one size of chunks after the whole system text, its first part, and a head.
struct Caches([Chunks; 3]);

impl Caches {
    fn new(tokens: u64) -> Self {
        Self([(); 3].map(|()| Chunks { entries: CacheEntries::new(tokens), found: Found::default() }))
    }

    fn find(&mut self, names: &[Vec<ChunkKey>; 3], request: &TraceRequest) {
        self.0.iter_mut().zip(names).for_each(|(chunks, names)| chunks.find(names, &request.documents));
    }

    fn found(&self) -> Documents {
        let [after_system, after_first_part, after_head] = self.0.each_ref().map(|chunks| chunks.found);
        Documents { after_system, after_first_part, after_head }
    }
}

/// A cache of chunks, with a byte for each token.
struct Chunks {
    entries: CacheEntries<()>,
    found: Found,
}

impl Chunks {
    /// Counts documents that are there; then all are for which there is room.
    fn find(&mut self, names: &[ChunkKey], documents: &[Part]) {
        let Self { entries, found } = self;
        entries.begin();
        // All that is there is in use before anything makes room.
        let is_there: Vec<bool> = names.iter().map(|name| entries.used(name).is_some()).collect();
        for ((name, part), is_there) in names.iter().zip(documents).zip(is_there) {
            if is_there {
                found.add(part);
            } else if !entries.has(name) && entries.make_room(part.tokens as u64).is_some() {
                entries.add(*name, (part.tokens as u64, 0), ());
            }
        }
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
