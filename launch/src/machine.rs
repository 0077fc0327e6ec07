//! What the planner is told about this machine.

use tributary_coordinator::{Machine, MemoryOf};

use crate::args::GroupArgs;
use crate::carrier::Carrier;
use crate::control_group::ControlGroups;
use crate::device::{Gpu, Place};
use crate::failure::usage;
use crate::ranks::Ranks;

/// FLOPs a second that any core of the last fifteen years does on one thread. The choice of an exchange rests on it.
const SAFE_FLOPS_PER_S: f64 = 5e9;

/// FLOPs a second that a GPU with tensor cores does at the least.
const SAFE_GPU_FLOPS_PER_S: f64 = 1e13;

/// Bytes a second between threads of one process, where a tensor is handed over, not copied.
const LOCAL_BYTES_PER_S: f64 = 1e10;

/// Bytes a second between processes: what a cheap network gives.
const NETWORK_BYTES_PER_S: f64 = 1e9;

/// This machine, as `world` ranks of `threads` threads on a kind of device see it.
pub fn machine(ranks: &Ranks, place: &Place, carrier: Carrier, world: usize, threads: usize) -> Machine {
    match &place.gpu {
        None => host(ranks, world, threads),
        Some(gpu) => device(ranks, gpu, carrier, world),
    }
}

/// Ranks on GPUs: threads share one with its weights, or each has its own, as processes have, unless they share it.
fn device(ranks: &Ranks, gpu: &Gpu, carrier: Carrier, world: usize) -> Machine {
    let (ranks_here, weight_copies, link_bytes_per_s) = match (ranks, carrier) {
        (Ranks::Threads { .. }, Carrier::Own) => (world, 1, LOCAL_BYTES_PER_S),
        (Ranks::Threads { .. }, Carrier::Nccl(_)) => {
            let ranks_here = world.div_ceil(gpu.count.max(1));
            (ranks_here, ranks_here, LOCAL_BYTES_PER_S)
        }
        (Ranks::Process(_), _) => (1, 1, NETWORK_BYTES_PER_S),
    };
    Machine {
        flops_per_s: SAFE_GPU_FLOPS_PER_S / ranks_here.max(1) as f64,
        link_bytes_per_s,
        memory: MemoryOf::Device,
        available_bytes: Some(gpu.budget_bytes),
        ranks_here,
        weight_copies,
        of_rank: None,
    }
}

fn host(ranks: &Ranks, world: usize, threads: usize) -> Machine {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let (ranks_here, weight_copies, link_bytes_per_s, available_bytes) = match ranks {
        Ranks::Threads { .. } => (world, 1, LOCAL_BYTES_PER_S, available_bytes()),
        Ranks::Process(process) => {
            let here = process.facts.local_size;
            (here, here, NETWORK_BYTES_PER_S, process.available_bytes)
        }
    };
    let busy = (ranks_here * threads).max(1) as f64;
    let share = (cores / busy).min(1.0);
    Machine {
        flops_per_s: SAFE_FLOPS_PER_S * threads as f64 * share,
        link_bytes_per_s,
        memory: MemoryOf::Host,
        available_bytes,
        ranks_here,
        weight_copies,
        of_rank: None,
    }
}

/// Bytes of chunks that each rank may keep: what was asked for, or its share of a quarter of what is free, on a device of what
/// the weights leave. As many groups of threads may keep some side by side.
pub fn chunk_cache_bytes(run: &GroupArgs, machine: &Machine, weight_bytes: u64, groups: usize) -> u64 {
    let free_bytes = machine.available_bytes.map_or(0, |bytes| match machine.memory {
        MemoryOf::Host => bytes,
        MemoryOf::Device => bytes.saturating_sub(weight_bytes * machine.weight_copies as u64),
    });
    run.chunk_cache.unwrap_or(free_bytes / 4 / (machine.ranks_here * groups).max(1) as u64)
}

/// The most threads of a host's ranks together: beyond any machine, and few enough to be started.
const MAX_THREADS: usize = 4096;

/// Whether so many ranks of a host can be started with so many threads each.
///
/// # Errors
/// None at all, or more than any machine has.
pub fn check_threads(ranks: usize, threads: usize) -> anyhow::Result<()> {
    if threads == 0 {
        return Err(usage("--threads 0: must be at least 1"));
    }
    match ranks.saturating_mul(threads) {
        ..=MAX_THREADS => Ok(()),
        all => Err(usage(format!(
            "--world-size {ranks} with --threads {threads}: {all} threads on a host, at most {MAX_THREADS} are allowed"
        ))),
    }
}

/// Cores of this host, whoever may use them.
pub fn online_cores() -> Option<usize> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    Some(cpuinfo.lines().filter(|line| line.starts_with("processor")).count()).filter(|&cores| cores > 0)
}

/// Memory that is free: what the system says, or what is left of the job's control groups' limits where that is less. A test
/// can say something else.
pub fn available_bytes() -> Option<u64> {
    fail::fail_point!("launch::memory", |bytes| bytes.and_then(|bytes| bytes.parse().ok()));
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let system = meminfo.and_then(|text| mem_available(&text));
    system.into_iter().chain(ControlGroups::of_this_process().memory_left_bytes()).min()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        group: GroupArgs,
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   12345 kB\n";
        assert_eq!(mem_available(text), Some(12345 * 1024));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn chunk_caches_share_a_quarter_of_what_is_free() {
        let run = |chunk_cache| GroupArgs { chunk_cache, ..Line::parse_from(["x"]).group };
        let host = Machine {
            flops_per_s: 1.0,
            link_bytes_per_s: 1.0,
            memory: MemoryOf::Host,
            available_bytes: Some(4800),
            ranks_here: 2,
            weight_copies: 2,
            of_rank: None,
        };
        let of = |machine: &Machine, groups| chunk_cache_bytes(&run(None), machine, 400, groups);
        assert_eq!((of(&host, 1), of(&host, 3)), (600, 200));
        assert_eq!(of(&Machine { memory: MemoryOf::Device, ..host }, 1), 500, "behind two copies of the weights");
        assert_eq!(of(&Machine { available_bytes: None, ..host }, 1), 0);
        assert_eq!(chunk_cache_bytes(&run(Some(7)), &host, 400, 3), 7, "what was asked for");
    }
}
