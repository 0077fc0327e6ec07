//! The planner's facts of this machine.

use tributary_planner::{GroupShape, Machine, MemoryOf};

use super::backend::Backend;
use crate::carrier::Carrier;
use crate::device::Gpu;

/// FLOPs a second that any core of the last fifteen years does on one thread. The choice of an
/// exchange rests on it.
const SAFE_FLOPS_PER_S: f64 = 5e9;

/// FLOPs a second that a GPU with tensor cores does at the least.
const SAFE_GPU_FLOPS_PER_S: f64 = 1e13;

/// This machine, as a group of ranks sees it: on its GPUs, where there are some, else on the host.
pub fn machine(backend: &dyn Backend, gpu: Option<&Gpu>, carrier: Carrier, group: GroupShape) -> Machine {
    let GroupShape { world, threads } = group;
    let neighbours = backend.neighbours(gpu.map(|gpu| gpu.count), carrier, world);
    let (flops_per_s, memory, available_bytes) = match gpu {
        Some(gpu) => {
            let flops_per_s = SAFE_GPU_FLOPS_PER_S / neighbours.ranks_here.max(1) as f64;
            (flops_per_s, MemoryOf::Device, Some(gpu.budget_bytes))
        }
        None => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
            let busy = (neighbours.ranks_here * threads).max(1) as f64;
            let share = (cores / busy).min(1.0);
            (SAFE_FLOPS_PER_S * threads as f64 * share, MemoryOf::Host, backend.free_bytes())
        }
    };
    Machine {
        flops_per_s,
        link_bytes_per_s: neighbours.link_bytes_per_s,
        memory,
        available_bytes,
        ranks_here: neighbours.ranks_here,
        weight_copies: neighbours.weight_copies,
        of_rank: None,
    }
}
