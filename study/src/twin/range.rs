//! What a replay's percentiles would be if every predicted time were off by as much as the profile
//! says that it may be.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::{P95_SAMPLES, percentile};
use tributary_load::TraceRequest;

use super::replay::replay;
use super::service::Service;
use crate::error::Result;

/// Percentiles of the time to first token in two more replays: with every time shorter, and longer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Range {
    /// Part by which times are shorter and longer.
    pub off_by: f64,
    /// The medians [ms].
    pub p50: [f64; 2],
    /// The 95th percentiles [ms], from 30 samples on.
    pub p95: Option<[f64; 2]>,
}

/// The percentiles with times off by the profile's spread; none if nothing is answered.
///
/// Times that are all longer by a factor are those of a replay that comes faster by that factor,
/// counted in a longer unit: only the longest gap of a stream does not grow with them.
///
/// # Errors
/// Fails as [`replay`] does.
pub fn range(service: &Service, requests: &[TraceRequest], (groups, speed): (usize, f64)) -> Result<Option<Range>> {
    let off_by = service.profile.spread().whole();
    let sorted_ms = |factor: f64| -> Result<Vec<f64>> {
        let replayed = replay(service, requests, (groups, speed * factor))?;
        Ok(replayed.ttft_s().iter().map(|seconds| 1e3 * factor * seconds).collect())
    };
    let both = [sorted_ms(1.0 / (1.0 + off_by))?, sorted_ms(1.0 + off_by)?];
    if both.iter().any(Vec::is_empty) {
        return Ok(None);
    }
    let of = |share: f64| both.each_ref().map(|sorted_ms| percentile(sorted_ms, share));
    let p95 = both.iter().all(|sorted_ms| sorted_ms.len() >= P95_SAMPLES).then(|| of(0.95));
    Ok(Some(Range { off_by, p50: of(0.5), p95 }))
}
