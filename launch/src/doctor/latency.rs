//! Latency of a small all-gather: the cost of a call before its bytes count.

use std::time::Instant;

use candle_core::Device;
use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::{Summary, summary};
use tributary_comm::Communicator;

use super::bandwidth::{WARM_UPS, collect, values};

/// Bytes that each rank sends: as many as NCCL's own all-gather needs.
pub const RANK_BYTES: usize = 256;

/// Number of all-gathers of a run, one after the other: with this number, the clock and the ranks'
/// start weigh little.
const CALLS: u32 = 20;

/// Measured latency.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Latency {
    /// Bytes that each rank sends.
    pub rank_bytes: usize,
    /// Microseconds of an all-gather: the mean of each run, as long as its slowest rank's.
    pub runs_us: Vec<f64>,
    /// Their median.
    pub median_us: f64,
    /// The least of them.
    pub min_us: f64,
    /// The largest of them.
    pub max_us: f64,
}

impl Latency {
    /// Latency from runs with these milliseconds a call, at least one.
    fn new(runs_ms: &[f64]) -> Self {
        let runs_us: Vec<f64> = runs_ms.iter().map(|ms| ms * 1e3).collect();
        let Summary { median, min, max, .. } = summary(&runs_us).expect("there is a run");
        Self { rank_bytes: RANK_BYTES, median_us: median, min_us: min, max_us: max, runs_us }
    }
}

/// Gathers a few bytes over and over, and waits for each gather before the next. Rank 0 gets the
/// result.
///
/// # Errors
/// Returns an error if the communicator fails, or if the ranks' reports do not fit together.
pub fn latency(comm: &mut dyn Communicator, device: &Device, repeat: u32) -> anyhow::Result<Option<Latency>> {
    let rows = vec![RANK_BYTES / size_of::<u32>(); comm.size()];
    let send = values(comm.rank(), rows[0], device)?; // [values of this rank]
    let mut runs_ms = Vec::with_capacity(repeat as usize);
    for run in 0..WARM_UPS + repeat {
        comm.barrier()?;
        let began = Instant::now();
        for _ in 0..CALLS {
            comm.all_gather_v(&send, &rows)?;
            device.synchronize()?;
        }
        if run >= WARM_UPS {
            runs_ms.push(began.elapsed().as_secs_f64() * 1e3 / f64::from(CALLS));
        }
    }
    let all = collect(comm, 0, runs_ms, repeat)?;
    Ok(all.map(|(runs_ms, _)| Latency::new(&runs_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_become_microseconds() {
        let found = Latency::new(&[0.5, 0.25, 1.0]);
        assert_eq!(found.runs_us, [500.0, 250.0, 1000.0]);
        assert_eq!((found.median_us, found.min_us, found.max_us), (500.0, 250.0, 1000.0));
    }
}
