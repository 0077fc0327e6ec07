//! Sizes of chunk caches: the maximum of each, and the sum if several groups of threads have theirs
//! side by side.

use std::collections::BTreeMap;

use crate::machine::{GroupShape, Machine, MemoryOf};

/// Bytes of chunks that each rank may keep: the requested number, or its share of a quarter of the
/// free memory; on a device, of the memory that the weights leave. `groups` groups of threads may
/// keep some side by side.
pub fn chunk_cache_bytes(asked_bytes: Option<u64>, machine: &Machine, weight_bytes: u64, groups: usize) -> u64 {
    let free_bytes = machine.available_bytes.map_or(0, |bytes| match machine.memory {
        MemoryOf::Host => bytes,
        MemoryOf::Device => bytes.saturating_sub(weight_bytes * machine.weight_copies as u64),
    });
    asked_bytes.unwrap_or(free_bytes / 4 / (machine.ranks_here * groups).max(1) as u64)
}

/// Bytes of chunk caches, as each rank of a group sees them: its own, and those of other groups'
/// ranks in the same memory, which count for the first rank there. `caches` has a number for each
/// rank of a group; `memory_of` numbers the memory of a rank of a group.
pub fn bytes_seen_by_ranks(
    own: GroupShape,
    caches: &BTreeMap<GroupShape, Vec<u64>>,
    memory_of: impl Fn(GroupShape, usize) -> usize,
) -> Vec<u64> {
    let mut bytes = vec![0; own.world];
    for (&group, kept) in caches {
        for (rank, kept_bytes) in kept.iter().enumerate() {
            let memory = memory_of(group, rank);
            let first_there = (0..own.world).find(|&own_rank| memory_of(own, own_rank) == memory);
            let sees = if group == own { Some(rank) } else { first_there };
            if let Some(rank) = sees {
                bytes[rank] += kept_bytes;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(world: usize) -> GroupShape {
        GroupShape { world, threads: 1 }
    }

    #[test]
    fn chunk_caches_share_a_quarter_of_what_is_free() {
        let host = Machine {
            flops_per_s: 1.0,
            link_bytes_per_s: 1.0,
            memory: MemoryOf::Host,
            available_bytes: Some(4800),
            ranks_here: 2,
            weight_copies: 2,
            of_rank: None,
        };
        let of = |machine: &Machine, groups| chunk_cache_bytes(None, machine, 400, groups);
        assert_eq!((of(&host, 1), of(&host, 3)), (600, 200));
        assert_eq!(of(&Machine { memory: MemoryOf::Device, ..host }, 1), 500, "beside two copies of the weights");
        assert_eq!(of(&Machine { available_bytes: None, ..host }, 1), 0);
        assert_eq!(chunk_cache_bytes(Some(7), &host, 400, 3), 7, "what was asked for");
    }

    #[test]
    fn other_groups_count_where_they_share_memory() {
        let caches = BTreeMap::from([(group(1), vec![100]), (group(2), vec![10, 20]), (group(4), vec![1, 2, 3, 4])]);
        let one_memory = |_, _| 0;
        assert_eq!(bytes_seen_by_ranks(group(1), &caches, one_memory), [140]);
        assert_eq!(bytes_seen_by_ranks(group(2), &caches, one_memory), [120, 20]);
        assert_eq!(bytes_seen_by_ranks(group(3), &caches, one_memory), [140, 0, 0], "a group that keeps nothing");
        let gpu_each = |_, rank| rank;
        assert_eq!(bytes_seen_by_ranks(group(1), &caches, gpu_each), [111]);
        assert_eq!(bytes_seen_by_ranks(group(4), &caches, gpu_each), [111, 22, 3, 4]);
        let two_gpus = |_, rank| rank % 2;
        assert_eq!(
            bytes_seen_by_ranks(group(1), &caches, two_gpus),
            [100 + 10 + 1 + 3],
            "what lies on the other GPU takes nothing here"
        );
        assert_eq!(bytes_seen_by_ranks(group(4), &caches, two_gpus), [111, 22, 3, 4]);
    }
}
