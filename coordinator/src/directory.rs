//! Which rank's chunk cache holds which chunk, as the ranks' reports say. A chunk that is gone meanwhile is computed where the
//! plan sends it: the directory may be wrong, never harmful.

use std::collections::BTreeMap;

use tributary_protocol::{ChunkKey, KeySpace, RankReport};

/// The chunks that a group of ranks keeps.
#[derive(Debug, Clone)]
pub struct Directory {
    space: KeySpace,
    ranks: BTreeMap<ChunkKey, usize>,
    used_bytes: Vec<u64>,
}

impl Directory {
    /// A directory of a group that has kept nothing yet.
    pub fn new(space: KeySpace) -> Self {
        Self { space, ranks: BTreeMap::new(), used_bytes: Vec::new() }
    }

    /// The rank that keeps a chunk behind this prefix.
    pub fn rank_of(&self, prefix: &[u32], ids: &[u32]) -> Option<usize> {
        self.ranks.get(&self.space.chunk(prefix, ids, &[])).copied()
    }

    /// Takes what ranks have kept and dropped during a request.
    pub fn note(&mut self, reports: &[RankReport]) {
        for (place, report) in reports.iter().enumerate() {
            assert_eq!(report.rank, place, "the rank whose report comes at this place");
        }
        self.used_bytes = reports.iter().map(|report| report.chunk_cache.used_bytes).collect();
        for RankReport { rank, chunk_cache, .. } in reports {
            for key in &chunk_cache.evicted {
                if self.ranks.get(key) == Some(rank) {
                    self.ranks.remove(key);
                }
            }
            self.ranks.extend(chunk_cache.stored.iter().map(|key| (*key, *rank)));
        }
    }

    /// Bytes of keys and values that each rank keeps; empty before the first request.
    pub fn used_bytes(&self) -> &[u64] {
        &self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::ChunkCacheReport;

    use super::*;

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
        assert_eq!(directory.rank_of(&[1], &[2, 3]), None);
        directory.note(&[report(0, &[a], &[], 16), report(1, &[b], &[], 8)]);
        assert_eq!((directory.rank_of(&[1], &[2, 3]), directory.rank_of(&[1], &[4])), (Some(0), Some(1)));
        assert_eq!(directory.rank_of(&[], &[4]), None, "another prefix, another chunk");
        assert_eq!(directory.used_bytes(), [16, 8]);
        directory.note(&[report(0, &[b], &[a], 8), report(1, &[], &[b], 0)]);
        assert_eq!((directory.rank_of(&[1], &[2, 3]), directory.rank_of(&[1], &[4])), (None, Some(0)));
    }
}
