//! Memory that a rank on a GPU needs in addition to its weights and its request: documented or
//! measured figures, each with its source.
//! A running group measures its messages' buffers (`Communicator::message_bytes`); these figures
//! stand in before a group runs.

use schemars::JsonSchema;
use serde::Serialize;

use super::Profile;
use crate::machine::MemoryOf;

/// The driver's context and the machine code in it. PyTorch's maintainers name 300 to 400 MB for
/// one process since CUDA loads code lazily (pytorch/pytorch, issues 107667 and 109888); ours loads
/// its own kernels at the start.
pub const CONTEXT_BYTES: u64 = 512 << 20;

/// NCCL's rings on a host of 8 H100, and its bookkeeping: with the context, 1.06 GB were measured
/// before the first all-to-all (NVIDIA/nccl, issue 1685).
pub const RINGS_BYTES: u64 = 640 << 20;

/// NCCL's buffers for another rank of the same host, once messages go to it directly. The first
/// all-to-all of that measurement brought the sum to 4.34 GB, which is 0.47 GB more for each of 7
/// others, most of it 32 channels of 10 and 2 MiB.
pub const PEER_BYTES: u64 = 448 << 20;

/// NCCL's buffer for messages over a network, which all other hosts share: 536870912 bytes
/// (NVIDIA/nccl, issue 2363).
pub const NETWORK_BYTES: u64 = 512 << 20;

/// Bytes of a rank's memory that belong neither to weights nor to requests, by owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Overhead {
    /// The driver's context, if a profile gives a GPU's whole memory.
    pub context_bytes: u64,
    /// NCCL's buffers for messages between ranks.
    pub message_bytes: u64,
}

impl Overhead {
    /// Overhead of each of `world` ranks of a machine. Workspaces and lists are counted with the
    /// request ([`crate::cost::memory::DEVICE_BYTES`]).
    pub fn of(profile: &Profile, world: usize) -> Self {
        if profile.rank.memory_of == MemoryOf::Host {
            return Self::default();
        }
        // A measured profile gives the free memory after the creation of the context.
        let context_bytes = if profile.measured_here { 0 } else { CONTEXT_BYTES };
        Self { context_bytes, message_bytes: message_bytes(world, profile.ranks_per_host) }
    }

    /// Bytes in total.
    pub fn bytes(self) -> u64 {
        self.context_bytes + self.message_bytes
    }
}

/// Bytes that NCCL takes of each GPU of `world` ranks, with `ranks_per_host` on a host.
pub fn message_bytes(world: usize, ranks_per_host: usize) -> u64 {
    if world <= 1 {
        return 0;
    }
    let here = ranks_per_host.clamp(1, world);
    let network = if here < world { NETWORK_BYTES } else { 0 };
    RINGS_BYTES + (here as u64 - 1) * PEER_BYTES + network
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_is_above_what_was_measured_and_near_it() {
        assert_eq!(message_bytes(1, 8), 0);
        // NVIDIA/nccl, issue 1685: 8 x H100, the context included.
        let of_eight = (CONTEXT_BYTES + message_bytes(8, 8)) as f64;
        assert!((4.34e9..1.1 * 4.34e9).contains(&of_eight), "{of_eight}");
        let before = (CONTEXT_BYTES + RINGS_BYTES) as f64;
        assert!((1.06e9..1.2 * 1.06e9).contains(&before), "{before}");
        assert_eq!(message_bytes(16, 8), message_bytes(8, 8) + NETWORK_BYTES);
        assert_eq!(message_bytes(2, 1), RINGS_BYTES + NETWORK_BYTES);
    }

    #[test]
    fn a_data_sheets_memory_holds_the_context_too() {
        let shipped = Profile::by_name("h100x8").unwrap();
        assert_eq!(
            Overhead::of(&shipped, 8),
            Overhead { context_bytes: CONTEXT_BYTES, message_bytes: message_bytes(8, 8) }
        );
        let measured = Profile { measured_here: true, ..shipped };
        assert_eq!(Overhead::of(&measured, 1), Overhead::default());
        assert_eq!(Overhead::of(&measured, 2).bytes(), RINGS_BYTES + PEER_BYTES);
    }
}
