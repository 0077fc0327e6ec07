//! The wait for NCCL's own work, which ends early where the group has died.

use std::time::{Duration, Instant};

use super::ffi::{Handle, Progress};
use crate::group::GroupMonitor;
use crate::{Error, Result};

/// Waits until NCCL has done its work. When that has taken as long as `limit`, `late` is asked
/// again and again whether it is too late.
pub(super) fn until_done(
    handle: &Handle,
    monitor: &dyn GroupMonitor,
    mut limit: Duration,
    late: &dyn Fn() -> Option<Error>,
) -> Result<()> {
    /// Time of looking without a rest, and the rest after it.
    const BUSY: Duration = Duration::from_micros(200);
    const REST: Duration = Duration::from_micros(50);
    const ASKED_AGAIN: Duration = Duration::from_millis(100);
    let began = Instant::now();
    loop {
        // The group is asked first: it ends before NCCL does, and knows why.
        monitor.alive()?;
        if handle.progress()? == Progress::Done {
            return Ok(());
        }
        match began.elapsed() {
            time if time > limit => {
                if let Some(error) = late() {
                    return Err(error);
                }
                limit = began.elapsed() + ASKED_AGAIN;
            }
            time if time > BUSY => std::thread::sleep(REST),
            _ => std::thread::yield_now(),
        }
    }
}
