//! What a group's ranks keep of each prompt, in memory and in a store, by the ranks' own policy.

use std::collections::HashSet;
use std::ops::Range;

use tributary_planner::ModelShape;
use tributary_protocol::{CacheEntries, ChunkKey, KeySpace, Plan, RankReport, StoreReport};

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

    /// What a plan finds, before it is computed.
    pub fn hits(&self, plan: &Plan) -> Hits {
        let mut hits = Hits { prompt: plan.total_rows(), lead: self.lead(plan), ..Hits::default() };
        let mut count = |key: &ChunkKey, rank: usize, tokens: usize| match self.ranks[rank].has(key) {
            true => hits.memory += tokens,
            false => hits.store += tokens,
        };
        if plan.reused_rows > 0 {
            for piece in plan.prompt_pieces(&self.space).iter().filter(|piece| piece.rows.start < plan.reused_rows) {
                count(&piece.key, plan.owner, piece.rows.end.min(plan.reused_rows) - piece.rows.start);
            }
        }
        for chunk in plan.chunks.iter().filter(|chunk| chunk.warm) {
            let key = self.space.chunk(plan.head(), &chunk.ids, &chunk.extra(plan.scope));
            count(&key, chunk.rank, chunk.ids.len());
        }
        hits
    }

    /// Tokens of the first pieces of the lead that every rank has; none where no chunk is warm.
    fn lead(&self, plan: &Plan) -> usize {
        if !plan.chunks.iter().any(|chunk| chunk.warm) {
            return 0;
        }
        let has = |key: &ChunkKey| self.ranks.iter().all(|rank| rank.has(key));
        let pieces = self.lead_pieces(plan);
        pieces.iter().take_while(|(key, _)| has(key)).map(|(_, tokens)| tokens).sum()
    }

    /// Pieces of the lead by names that all ranks share here: each covers all tokens up to its end.
    fn lead_pieces(&self, plan: &Plan) -> Vec<(ChunkKey, usize)> {
        let piece = |rows: Range<u32>| {
            let key = self.space.chunk(&plan.prefix[..rows.end as usize], &[], b"lead");
            (key, rows.len())
        };
        plan.lead_rows().into_iter().map(piece).collect()
    }

    /// Keeps what a plan leaves, and makes the ranks' reports of it.
    pub fn keep(&mut self, plan: &Plan) -> Vec<RankReport> {
        let mut stored = Vec::new();
        let reports = (0..self.ranks.len()).map(|rank| self.keep_on(rank, plan, &mut stored)).collect();
        let mut reports: Vec<RankReport> = reports;
        if let Some(store) = &mut self.store {
            reports[0].chunk_cache.store = Some(write(store, stored));
        }
        reports
    }

    fn keep_on(&mut self, rank: usize, plan: &Plan, stored: &mut Vec<Piece>) -> RankReport {
        let pieces = self.pieces(rank, plan);
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
        stored.extend(pieces);
        report
    }

    /// What a rank keeps of a plan, in the order in which it does.
    fn pieces(&self, rank: usize, plan: &Plan) -> Vec<Piece> {
        let row_bytes = self.shape.kv_bytes();
        let piece = |key, rows: usize, before| Piece { key, bytes: rows as u64 * row_bytes, before };
        if !plan.keep_chunks {
            return Vec::new();
        }
        if plan.method.reuses_prefix() {
            let pieces = if rank == plan.owner { plan.prompt_pieces(&self.space) } else { Vec::new() };
            return pieces.into_iter().map(|found| piece(found.key, found.ids.len(), found.rows.start)).collect();
        }
        if plan.method.selection().is_none() {
            return Vec::new();
        }
        let head = piece(self.space.prefix(plan.head()), plan.head_tokens(), 0);
        let lead = self.lead_pieces(plan).into_iter().map(|(key, rows)| piece(key, rows, 0));
        let chunks = plan.chunks.iter().filter(|chunk| chunk.rank == rank).map(|chunk| Piece {
            key: self.space.chunk(plan.head(), &chunk.ids, &chunk.extra(plan.scope)),
            bytes: self.shape.chunk_bytes(chunk),
            before: 0,
        });
        let mut seen = HashSet::new();
        std::iter::once(head).chain(lead).chain(chunks).filter(|piece| seen.insert(piece.key)).collect()
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
