//! What a group's ranks keep of each prompt, in memory and in a store, by the ranks' own policy.

use std::collections::HashSet;
use std::ops::Range;

use tributary_planner::ModelShape;
use tributary_protocol::{CacheEntries, Chunk, ChunkKey, KeySpace, Plan, PromptPiece, RankReport, StoreReport};

/// Bytes of the store of a group, if it has one.
pub type StoreBytes = Option<u64>;

/// The caches of a group's ranks.
#[derive(Debug)]
pub struct Caches {
    space: KeySpace,
    shape: ModelShape,
    ranks: Vec<CacheEntries<()>>,
    store: Option<CacheEntries<()>>,
    /// Number of entries that went from a rank's memory.
    evicted: u64,
}

/// Tokens of a prompt by the place that they come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hits {
    /// From a rank's memory.
    pub memory: usize,
    /// From the store.
    pub store: usize,
    /// All tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the lead, at its beginning, that every rank has; they count as computed.
    pub lead: usize,
}

/// Names of everything that a plan takes from caches or leaves in them, computed once.
#[derive(Debug)]
pub struct Names {
    /// The head, for a method that keeps chunks.
    head: Option<ChunkKey>,
    /// Pieces of the lead with their tokens; a name covers all pieces before.
    lead: Vec<(ChunkKey, usize)>,
    chunks: Vec<ChunkKey>,
    /// Pieces of the whole prompt, for a method that reuses its prefix.
    pieces: Vec<PromptPiece>,
}

/// An entry of a plan on a rank.
struct Piece {
    key: ChunkKey,
    bytes: u64,
    /// Rows of the prompt before it.
    before: usize,
}

impl Caches {
    /// Empty caches of `world` ranks with `bytes` bytes each.
    pub fn new(space: KeySpace, shape: ModelShape, world: usize, (bytes, store): (u64, StoreBytes)) -> Self {
        let ranks = (0..world).map(|_| CacheEntries::new(bytes)).collect();
        Self { space, shape, ranks, store: store.map(CacheEntries::new), evicted: 0 }
    }

    /// The names of a plan's parts.
    pub fn names(&self, plan: &Plan) -> Names {
        let space = &self.space;
        let pieces = if plan.method.reuses_prefix() { plan.prompt_pieces(space) } else { Vec::new() };
        if !plan.method.in_chunks() {
            return Names { head: None, lead: Vec::new(), chunks: Vec::new(), pieces };
        }
        let head = space.prefix(plan.head());
        let mut before = head;
        let piece = |rows: Range<u32>| {
            before = space.chunk(&[], &plan.prefix[rows.start as usize..rows.end as usize], &before.bytes());
            (before, rows.len())
        };
        let lead = plan.lead_rows().into_iter().map(piece).collect();
        let chunk = |chunk: &Chunk| space.chunk(plan.head(), &chunk.ids, &chunk.extra(plan.scope));
        Names { head: Some(head), lead, chunks: plan.chunks.iter().map(chunk).collect(), pieces }
    }

    /// What a plan finds, before it is computed.
    pub fn hits(&self, plan: &Plan, names: &Names) -> Hits {
        let mut hits = Hits { prompt: plan.total_rows(), ..Hits::default() };
        let mut count = |key: &ChunkKey, rank: usize, tokens: usize| match self.ranks[rank].has(key) {
            true => hits.memory += tokens,
            false => hits.store += tokens,
        };
        for piece in names.pieces.iter().filter(|piece| piece.rows.start < plan.reused_rows) {
            count(&piece.key, plan.owner, piece.rows.end.min(plan.reused_rows) - piece.rows.start);
        }
        let warm = || plan.chunks.iter().zip(&names.chunks).filter(|(chunk, _)| chunk.warm);
        warm().for_each(|(chunk, key)| count(key, chunk.rank, chunk.ids.len()));
        // The lead is looked up where a chunk is warm.
        if warm().next().is_some() {
            let has = |(key, _): &&(ChunkKey, usize)| self.ranks.iter().all(|rank| rank.has(key));
            hits.lead = names.lead.iter().take_while(has).map(|(_, tokens)| tokens).sum();
        }
        hits
    }

    /// Keeps what a plan leaves, and makes the ranks' reports of it.
    pub fn keep(&mut self, plan: &Plan, names: &Names) -> Vec<RankReport> {
        let mut written = Vec::new();
        let reports = (0..self.ranks.len()).map(|rank| self.keep_on(rank, plan, names, &mut written));
        let mut reports: Vec<RankReport> = reports.collect();
        if let Some(store) = &mut self.store {
            reports[0].chunk_cache.store = Some(write(store, written));
        }
        reports
    }

    fn keep_on(&mut self, rank: usize, plan: &Plan, names: &Names, written: &mut Vec<Piece>) -> RankReport {
        let pieces = if plan.keep_chunks { self.pieces(rank, plan, names) } else { Vec::new() };
        let entries = &mut self.ranks[rank];
        entries.begin();
        let mut report = RankReport { rank, ..RankReport::default() };
        // All that is taken from the cache is in use before anything makes room.
        let is_missing: Vec<bool> = pieces.iter().map(|piece| entries.used(&piece.key).is_none()).collect();
        for (piece, _) in pieces.iter().zip(is_missing).filter(|(_, is_missing)| *is_missing) {
            if let Some(gone) = entries.make_room(piece.bytes) {
                entries.add(piece.key, (piece.bytes, piece.before), ());
                report.chunk_cache.evicted.extend(gone);
                report.chunk_cache.stored.push(piece.key);
            }
        }
        report.chunk_cache.used_bytes = entries.used_bytes();
        self.evicted += report.chunk_cache.evicted.len() as u64;
        written.extend(pieces);
        report
    }

    /// What a rank keeps of a plan, in the order in which it does.
    fn pieces(&self, rank: usize, plan: &Plan, names: &Names) -> Vec<Piece> {
        let row_bytes = self.shape.kv_bytes();
        let piece = |key, rows: usize, before| Piece { key, bytes: rows as u64 * row_bytes, before };
        let prompt = names.pieces.iter().filter(|_| rank == plan.owner);
        let prompt = prompt.map(|found| piece(found.key, found.ids.len(), found.rows.start));
        let head = names.head.map(|head| piece(head, plan.head_tokens(), 0));
        let lead = names.lead.iter().map(|&(key, rows)| piece(key, rows, 0));
        let own = plan.chunks.iter().zip(&names.chunks).filter(|(chunk, _)| chunk.rank == rank);
        let chunks = own.map(|(chunk, &key)| Piece { key, bytes: self.shape.chunk_bytes(chunk), before: 0 });
        let mut seen = HashSet::new();
        prompt.chain(head).chain(lead).chain(chunks).filter(|piece| seen.insert(piece.key)).collect()
    }

    /// Bytes in each rank's memory.
    pub fn used_bytes(&self) -> impl Iterator<Item = u64> {
        self.ranks.iter().map(CacheEntries::used_bytes)
    }

    /// Number of entries that went from the ranks' memories.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

/// Writes pieces to a store, and reports what comes and goes.
fn write(store: &mut CacheEntries<()>, pieces: Vec<Piece>) -> StoreReport {
    let mut report = StoreReport::default();
    store.begin();
    for piece in pieces {
        if store.used(&piece.key).is_some() {
            continue;
        }
        if let Some(gone) = store.make_room(piece.bytes) {
            store.add(piece.key, (piece.bytes, piece.before), ());
            report.gone.extend(gone);
            report.stored.push(piece.key);
        }
    }
    report.used_bytes = store.used_bytes();
    report
}
