//! Places of chunks in the ranks' chunk caches and in stores, by the ranks' reports. A missing
//! chunk is computed on the rank that the plan sends it to: the directory may be wrong, never
//! harmful.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tributary_protocol::{
    Chunk, ChunkKey, KeySpace, PIECE_ROWS, Plan, PromptPiece, RankReport, StoreReport, prompt_pieces,
};

use crate::plan::Held;

/// Maximum number of documents that are ordered by what is cached: the work grows with it.
const MOST_ORDERED: usize = 64;

/// A store that some ranks read, and the chunks that it held when the group started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreInventory {
    /// The ranks, ascending.
    pub ranks: Vec<usize>,
    /// The chunks.
    pub chunks: Vec<ChunkKey>,
}

/// The chunks that a group of ranks keeps.
#[derive(Debug, Clone)]
pub struct Directory {
    space: KeySpace,
    /// The ranks whose memories have each, the last one that reported it last.
    ranks: BTreeMap<ChunkKey, Vec<usize>>,
    used_bytes: Vec<u64>,
    stores: Vec<KnownStore>,
}

/// Known state of a store.
#[derive(Debug, Clone)]
struct KnownStore {
    ranks: Arc<[usize]>,
    chunks: HashSet<ChunkKey>,
    used_bytes: u64,
}

impl KnownStore {
    /// Takes the gains and losses of the store.
    fn hear(&mut self, told: &StoreReport) {
        for key in &told.gone {
            self.chunks.remove(key);
        }
        self.chunks.extend(&told.stored);
        self.used_bytes = told.used_bytes;
    }
}

impl Directory {
    /// A directory of a group that has kept nothing yet.
    pub fn new(space: KeySpace) -> Self {
        Self { space, ranks: BTreeMap::new(), used_bytes: Vec::new(), stores: Vec::new() }
    }

    /// The same with the contents of stores.
    #[must_use]
    pub fn with(self, inventory: Vec<StoreInventory>) -> Self {
        let known = |StoreInventory { ranks, chunks }| {
            assert!(ranks.is_sorted() && !ranks.is_empty(), "ranks that read a store: {ranks:?}");
            KnownStore { ranks: ranks.into(), chunks: chunks.into_iter().collect(), used_bytes: 0 }
        };
        Self { stores: inventory.into_iter().map(known).collect(), ..self }
    }

    /// Place of a chunk of a scope after this head: a rank's memory, unless those are ignored
    /// (`from_store`), or a store.
    pub fn held(&self, head: &[u32], chunk: &Chunk, (scope, from_store): (Option<u64>, bool)) -> Held {
        let key = self.space.chunk(head, &chunk.ids, &chunk.extra(scope));
        if let Some(&rank) = self.ranks.get(&key).and_then(|ranks| ranks.last()).filter(|_| !from_store) {
            return Held::Memory(rank);
        }
        let store = self.stores.iter().find(|store| store.chunks.contains(&key));
        store.map_or(Held::Nowhere, |store| Held::Stored(Arc::clone(&store.ranks)))
    }

    /// Rows of the longest prefix of a plan's prompt that each of `world` ranks has in pieces, in
    /// its memory or a store.
    pub fn prefix(&self, plan: &Plan, world: usize) -> Vec<usize> {
        let pieces = plan.prompt_pieces(&self.space);
        let rows = |rank| self.cached(rank, plan, pieces.iter().cloned()).map_or(0, |piece| piece.rows.end);
        (0..world).map(rows).collect()
    }

    /// The last of the first pieces that a rank has.
    fn cached(&self, rank: usize, plan: &Plan, pieces: impl Iterator<Item = PromptPiece>) -> Option<PromptPiece> {
        let in_memory = |key: &ChunkKey| self.ranks.get(key).is_some_and(|ranks| ranks.contains(&rank));
        let store = self.stores.iter().find(|store| store.ranks.contains(&rank));
        let has = |key: &ChunkKey| {
            (!plan.from_store && in_memory(key)) || store.is_some_and(|store| store.chunks.contains(key))
        };
        pieces.take_while(|piece| has(&piece.key)).last()
    }

    /// The order of a plan's chunks in which most of the prompt's prefix is on one of `world`
    /// ranks. At each place stands the chunk with which most more is cached, the earlier one of
    /// equals. From the first place on at which none is, and after 64 of them, chunks stand in the
    /// request's order.
    pub fn order(&self, plan: &Plan, world: usize) -> Vec<u32> {
        let orders = (0..world).map(|rank| self.order_on(rank, plan));
        let (_, mut order) = orders.max_by_key(|(rows, _)| *rows).unwrap_or_default();
        let rest = plan.request_order().into_iter().filter(|chunk| !order.contains(chunk));
        order.extend(rest.collect::<Vec<_>>());
        order
    }

    /// Cached rows on a rank, and the chunks that they reach into.
    fn order_on(&self, rank: usize, plan: &Plan) -> (usize, Vec<u32>) {
        let (mut order, mut left) = (Vec::new(), plan.request_order());
        // The last whole piece that is cached, its end, and the tokens placed after it.
        let mut reached = self.reach(rank, plan, (None, 0), &plan.prefix);
        let mut open = plan.prefix[reached.1..].to_vec();
        while open.len() < PIECE_ROWS && order.len() < MOST_ORDERED {
            let placed = reached.1 + open.len();
            let with = left.iter().enumerate().map(|(place, &chunk)| {
                let ids = [&open[..], &plan.chunks[chunk as usize].ids].concat();
                let (key, rows) = self.reach(rank, plan, reached, &ids);
                (rows, Reverse(place), key)
            });
            let Some((rows, Reverse(place), key)) = with.max().filter(|(rows, ..)| *rows > placed) else { break };
            let chunk = left.remove(place);
            open.extend(&plan.chunks[chunk as usize].ids);
            open.drain(..rows - reached.1);
            reached = (key, rows);
            order.push(chunk);
        }
        (reached.1, order)
    }

    /// The last whole piece that a rank has of those tokens after a piece, and its end.
    fn reach(
        &self,
        rank: usize,
        plan: &Plan,
        after: (Option<ChunkKey>, usize),
        ids: &[u32],
    ) -> (Option<ChunkKey>, usize) {
        let whole = &ids[..ids.len() / PIECE_ROWS * PIECE_ROWS];
        let pieces = prompt_pieces(&self.space, plan.scope, after, whole);
        self.cached(rank, plan, pieces).map_or(after, |piece| (Some(piece.key), piece.rows.end))
    }

    /// Takes the ranks' reports on chunks kept and dropped during a request.
    pub fn note(&mut self, reports: &[RankReport]) {
        for (place, report) in reports.iter().enumerate() {
            assert_eq!(report.rank, place, "the rank whose report comes at this place");
        }
        self.used_bytes = reports.iter().map(|report| report.chunk_cache.used_bytes).collect();
        for RankReport { rank, chunk_cache, .. } in reports {
            for key in &chunk_cache.evicted {
                if let Entry::Occupied(mut ranks) = self.ranks.entry(*key) {
                    ranks.get_mut().retain(|other| other != rank);
                    if ranks.get().is_empty() {
                        ranks.remove();
                    }
                }
            }
            for key in &chunk_cache.stored {
                let ranks = self.ranks.entry(*key).or_default();
                ranks.retain(|other| other != rank);
                ranks.push(*rank);
            }
            let store = self.stores.iter_mut().find(|store| store.ranks.contains(rank));
            if let (Some(store), Some(told)) = (store, &chunk_cache.store) {
                store.hear(told);
            }
        }
    }

    /// Takes the store reports of another group of the same process, which shares the store.
    pub fn overhear(&mut self, reports: &[RankReport]) {
        for told in reports.iter().filter_map(|report| report.chunk_cache.store.as_ref()) {
            self.stores.iter_mut().for_each(|store| store.hear(told));
        }
    }

    /// The stores: the first of the ranks that read each, and the last reported bytes of its files.
    pub fn stores(&self) -> Vec<(usize, u64)> {
        self.stores.iter().map(|store| (store.ranks[0], store.used_bytes)).collect()
    }

    /// Bytes of keys and values that each rank keeps; empty before the first request.
    pub fn used_bytes(&self) -> &[u64] {
        &self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::{Around, ChunkCacheReport};

    use super::*;

    fn chunk(ids: &[u32]) -> Chunk {
        Chunk { ids: ids.to_vec(), pictures: Vec::new(), rank: 0, warm: false, around: None, compress: None }
    }

    #[test]
    #[should_panic(expected = "the rank whose report comes at this place")]
    fn reports_come_in_the_order_of_the_ranks() {
        let report = |rank| RankReport { rank, ..RankReport::default() };
        Directory::new(KeySpace::new([3; 32], "f32")).note(&[report(1), report(0)]);
    }

    #[test]
    fn it_follows_the_ranks_reports() {
        let space = KeySpace::new([3; 32], "f32");
        let (a, b) = (space.chunk(&[1], &[2, 3], &[]), space.chunk(&[1], &[4], &[]));
        let report = |rank, stored: &[ChunkKey], evicted: &[ChunkKey], used_bytes| RankReport {
            rank,
            chunk_cache: ChunkCacheReport {
                stored: stored.to_vec(),
                evicted: evicted.to_vec(),
                used_bytes,
                ..ChunkCacheReport::default()
            },
            ..RankReport::default()
        };
        let mut directory = Directory::new(space);
        let at = |directory: &Directory, ids: &[u32]| directory.held(&[1], &chunk(ids), (None, false));
        assert_eq!(at(&directory, &[2, 3]), Held::Nowhere);
        directory.note(&[report(0, &[a], &[], 16), report(1, &[b], &[], 8)]);
        assert_eq!((at(&directory, &[2, 3]), at(&directory, &[4])), (Held::Memory(0), Held::Memory(1)));
        assert_eq!(directory.held(&[], &chunk(&[4]), (None, false)), Held::Nowhere, "another prefix, another chunk");
        let around = Some(Around { adapter: 9, head: 1, tail: 1 });
        let between = Chunk { around, ..chunk(&[4]) };
        assert_eq!(
            directory.held(&[1], &between, (None, false)),
            Held::Nowhere,
            "between an adapter's rows, another chunk"
        );
        assert_eq!(directory.used_bytes(), [16, 8]);
        directory.note(&[report(0, &[b], &[a], 8), report(1, &[], &[b], 0)]);
        assert_eq!((at(&directory, &[2, 3]), at(&directory, &[4])), (Held::Nowhere, Held::Memory(0)));
    }

    #[test]
    fn what_lies_in_a_store_can_be_read_by_those_who_reach_it() {
        let space = KeySpace::new([3; 32], "f32");
        let [a, b, c] = [2, 3, 4].map(|id| space.chunk(&[1], &[id], &[]));
        let inventory = [([0, 1], vec![a]), ([2, 3], vec![b])];
        let inventory = inventory.map(|(ranks, chunks)| StoreInventory { ranks: ranks.to_vec(), chunks });
        let mut directory = Directory::new(space).with(inventory.to_vec());
        let at = |directory: &Directory, id: u32| directory.held(&[1], &chunk(&[id]), (None, false));
        assert_eq!((at(&directory, 2), at(&directory, 3)), (Held::Stored([0, 1].into()), Held::Stored([2, 3].into())));
        let mut reports: Vec<RankReport> = (0..4).map(|rank| RankReport { rank, ..RankReport::default() }).collect();
        // One rank of a store reports it; the other has nothing left to report.
        let told = |stored, gone| Some(StoreReport { stored, gone, ..StoreReport::default() });
        reports[1].chunk_cache.store = told(vec![c], vec![a]);
        reports[0].chunk_cache.store = told(vec![], vec![]);
        reports[2].chunk_cache.stored = vec![c];
        reports[3].chunk_cache.store = Some(StoreReport { used_bytes: 7, ..StoreReport::default() });
        directory.note(&reports);
        assert_eq!(directory.stores(), [(0, 0), (2, 7)]);
        assert_eq!((at(&directory, 2), at(&directory, 4)), (Held::Nowhere, Held::Memory(2)), "memory is nearer");
        assert_eq!(
            directory.held(&[1], &chunk(&[4]), (None, true)),
            Held::Stored([0, 1].into()),
            "unless it is passed over"
        );
    }

    #[test]
    fn what_a_store_tells_another_group_is_known_here_too() {
        let space = KeySpace::new([3; 32], "f32");
        let [a, b] = [2, 3].map(|id| space.chunk(&[1], &[id], &[]));
        let inventory = StoreInventory { ranks: vec![0], chunks: vec![a] };
        let mut directory = Directory::new(space).with(vec![inventory]);
        let mut report = RankReport { rank: 1, ..RankReport::default() };
        report.chunk_cache.stored = vec![a];
        report.chunk_cache.store = Some(StoreReport { stored: vec![b], gone: vec![a], ..StoreReport::default() });
        directory.overhear(&[report]);
        let at = |id: u32| directory.held(&[1], &chunk(&[id]), (None, false));
        assert_eq!((at(2), at(3)), (Held::Nowhere, Held::Stored([0].into())), "its memory is not this group's");
    }
}
