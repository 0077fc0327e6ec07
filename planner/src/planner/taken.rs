//! Memory that the running groups of an engine have taken on their ranks, in addition to weights
//! and requests: their chunk caches, and message buffers between GPUs.

use std::collections::BTreeMap;

use crate::machine::{GroupShape, Machine};

/// Memory taken by all running groups.
#[derive(Debug, Default)]
pub struct Taken(BTreeMap<GroupShape, Group>);

#[derive(Debug, Clone, Copy)]
struct Group {
    /// Bytes of chunks that each of its ranks may keep.
    chunk_cache_bytes: u64,
    /// Bytes of a GPU in message buffers.
    message_bytes: u64,
}

impl Taken {
    /// A group has started.
    pub fn add(&mut self, group: GroupShape, chunk_cache_bytes: u64, message_bytes: u64) {
        self.0.insert(group, Group { chunk_cache_bytes, message_bytes });
    }

    /// A group has ended.
    pub fn remove(&mut self, group: GroupShape) {
        self.0.remove(&group);
    }

    /// Bytes of chunks that each rank of a running group may keep: its number from the start.
    pub fn chunk_cache_bytes(&self, group: GroupShape) -> Option<u64> {
        self.0.get(&group).map(|group| group.chunk_cache_bytes)
    }

    /// The machine without message buffers. Every group has its first rank on the first GPU, so the
    /// buffers of all lie side by side there. They count as often as a machine's memory has ranks
    /// of a group.
    pub fn left_of(&self, machine: Machine) -> Machine {
        let all: u64 = self.0.values().map(|group| group.message_bytes).sum();
        let taken = all.saturating_mul(machine.ranks_here.max(1) as u64);
        Machine { available_bytes: machine.available_bytes.map(|bytes| bytes.saturating_sub(taken)), ..machine }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine {
        flops_per_s: 1.0,
        link_bytes_per_s: 1.0,
        memory: crate::machine::MemoryOf::Device,
        available_bytes: Some(1000),
        ranks_here: 1,
        weight_copies: 1,
        of_rank: None,
    };

    fn of(world: usize) -> GroupShape {
        GroupShape { world, threads: 1 }
    }

    fn left(taken: &Taken) -> Option<u64> {
        taken.left_of(MACHINE).available_bytes
    }

    #[test]
    fn groups_side_by_side_take_their_buffers_together_and_give_them_back() {
        let mut taken = Taken::default();
        assert_eq!(left(&taken), Some(1000));
        taken.add(of(2), 50, 100);
        taken.add(of(4), 60, 200);
        assert_eq!(left(&taken), Some(700));
        assert_eq!((taken.chunk_cache_bytes(of(4)), taken.chunk_cache_bytes(of(3))), (Some(60), None));
        // A group that has failed and is restarted takes no more than before.
        taken.remove(of(2));
        assert_eq!(left(&taken), Some(800));
        taken.add(of(2), 50, 100);
        assert_eq!(left(&taken), Some(700));
        taken.add(of(8), 0, 5000);
        assert_eq!(left(&taken), Some(0));
        assert_eq!(taken.left_of(Machine { available_bytes: None, ..MACHINE }).available_bytes, None);
    }
}
