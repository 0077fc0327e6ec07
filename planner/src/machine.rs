//! Facts of a machine for the planner: its speed, its memory, and the ranks that share it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Owner of the memory of weights and requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemoryOf {
    /// The host's: activations are f32.
    #[default]
    Host,
    /// A device's: activations are of the weights' type.
    Device,
}

/// Facts of the machine for the planner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// FLOPs that one rank does in a second, roughly.
    pub flops_per_s: f64,
    /// Bytes that one rank receives in a second.
    pub link_bytes_per_s: f64,
    /// Owner of the memory of weights and requests.
    pub memory: MemoryOf,
    /// Bytes free for weights and requests together; unknown where absent. The ranks of a host, or
    /// of a device, share them.
    pub available_bytes: Option<u64>,
    /// Ranks that share that memory.
    pub ranks_here: usize,
    /// Number of copies of the weights in it: one if ranks are threads, one a rank if they are
    /// processes.
    pub weight_copies: usize,
    /// The rank with that memory, if it is not the planner's own.
    pub of_rank: Option<usize>,
}

/// A group of ranks by its size: groups of other sizes may coexist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupShape {
    /// Number of ranks.
    pub world: usize,
    /// Threads of each rank.
    pub threads: usize,
}

/// Memory and the ranks that share it: a host's, or a GPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeMemory {
    /// Bytes free for weights and requests; unknown where absent.
    pub available_bytes: Option<u64>,
    /// Ranks that share it, each with weights of its own.
    pub ranks: usize,
}

impl FreeMemory {
    /// The memory of a process that sees this machine.
    pub fn of(machine: &Machine) -> Self {
        Self { available_bytes: machine.available_bytes, ranks: machine.ranks_here }
    }

    /// The memory left after each of its ranks has taken `bytes` bytes.
    pub fn without(self, bytes: u64) -> Self {
        let taken = bytes.saturating_mul(self.ranks as u64);
        Self { available_bytes: self.available_bytes.map(|available| available.saturating_sub(taken)), ..self }
    }

    /// The machine with this memory, a rank's, in place of its own.
    pub fn of_rank(self, rank: usize, machine: &Machine) -> Machine {
        let FreeMemory { available_bytes, ranks } = self;
        Machine { available_bytes, ranks_here: ranks, weight_copies: ranks, of_rank: Some(rank), ..*machine }
    }

    /// Bytes of each of its ranks; the maximum number if unknown.
    pub fn each_bytes(self) -> u64 {
        self.available_bytes.map_or(u64::MAX, |bytes| bytes / self.ranks.max(1) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_takes_the_room_of_a_rank() {
        let own = Machine {
            flops_per_s: 1.0,
            link_bytes_per_s: 1.0,
            memory: MemoryOf::Host,
            available_bytes: Some(100),
            ranks_here: 2,
            weight_copies: 2,
            of_rank: None,
        };
        let there = FreeMemory { available_bytes: Some(50), ranks: 4 }.of_rank(3, &own);
        assert_eq!(
            there,
            Machine { available_bytes: Some(50), ranks_here: 4, weight_copies: 4, of_rank: Some(3), ..own }
        );
        assert_eq!(FreeMemory::of(&there), FreeMemory { available_bytes: Some(50), ranks: 4 });
    }
}
