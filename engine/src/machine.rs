//! What this machine has: memory that is free, room for threads, ways between ranks. Reads, and changes nothing.

use tributary_system::memory;

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
/// Zero threads, or more than any machine has.
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

/// Bytes of memory that are free for this process, whatever limits it. A test can say something else.
pub fn available_bytes() -> Option<u64> {
    fail::fail_point!("engine::memory", |bytes| bytes.and_then(|bytes| bytes.parse().ok()));
    memory::available_bytes()
}
