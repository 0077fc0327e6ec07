//! Facts of this machine: free memory, room for threads, ways between ranks. Reads, and changes
//! nothing.

use tributary_system::memory;

use crate::error::{Error, Result};

/// Bytes a second between threads of one process, where a tensor is handed over, not copied.
pub(crate) const LOCAL_BYTES_PER_S: f64 = 1e10;

/// Bytes a second between processes: the rate of a cheap network.
pub(crate) const NETWORK_BYTES_PER_S: f64 = 1e9;

/// The most threads of a host's ranks together: beyond any machine, and few enough to be started.
const MAX_THREADS: usize = 4096;

/// Checks that `ranks` ranks of a host can be started with `threads` threads each.
///
/// # Errors
/// Returns an error if the number of threads is zero, or exceeds that of any machine.
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

/// Bytes of memory that are free for this process, under all its limits. A test can say something
/// else.
pub fn available_bytes() -> Option<u64> {
    fail::fail_point!("engine::memory", |bytes| bytes.and_then(|bytes| bytes.parse().ok()));
    memory::available_bytes()
}
