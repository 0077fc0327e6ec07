//! What this machine has: memory that is free, cores, ways between ranks. Reads, and changes nothing.

use crate::control_group::ControlGroups;
use crate::error::{Error, Result};

/// Bytes a second between threads of one process, where a tensor is handed over, not copied.
pub(crate) const LOCAL_BYTES_PER_S: f64 = 1e10;

/// Bytes a second between processes: what a cheap network gives.
pub(crate) const NETWORK_BYTES_PER_S: f64 = 1e9;

/// The most threads of a host's ranks together: beyond any machine, and few enough to be started.
const MAX_THREADS: usize = 4096;

/// Whether so many ranks of a host can be started with so many threads each.
///
/// # Errors
/// None at all, or more than any machine has.
pub fn check_threads(ranks: usize, threads: usize) -> Result<()> {
    if threads == 0 {
        return Err(Error::usage("--threads 0: must be at least 1"));
    }
    match ranks.saturating_mul(threads) {
        ..=MAX_THREADS => Ok(()),
        all => Err(Error::usage(format!(
            "--world-size {ranks} with --threads {threads}: {all} threads on a host, at most {MAX_THREADS} are allowed"
        ))),
    }
}

/// Cores of this host, whoever may use them.
pub(crate) fn online_cores() -> Option<usize> {
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
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   12345 kB\n";
        assert_eq!(mem_available(text), Some(12345 * 1024));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
    }
}
