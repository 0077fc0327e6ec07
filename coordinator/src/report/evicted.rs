//! The eviction between a request's first token and its second.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_planner::cost::{Evicting, RankWork};
use tributary_planner::{ModelShape, Planned};
use tributary_protocol::{Phase, RankReport};

use super::rows::ms;

/// The eviction of a request, all ranks together.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EvictedRow {
    /// The method's name.
    pub method: &'static str,
    /// Rows of the prompt before.
    pub rows: f64,
    /// Rows that are kept, the mean over layers and KV heads.
    pub kept_rows: f64,
    /// Bytes of keys and values of the prompt before.
    pub bytes_before: u64,
    /// Bytes of them that remain.
    pub bytes_kept: u64,
    /// Whether kept rows went to the owner, which has decoded alone since.
    pub gathered: bool,
    /// Rows that were computed to measure their attention.
    pub asking_rows: usize,
    /// Bytes sent between ranks for it.
    pub received_bytes: u64,
    /// Its time between the first token and the second, on the rank where it took longest.
    pub ms: f64,
    /// Values from the planner's formulas.
    pub formula: EvictionFormula,
}

/// Predicted cost of an eviction, all ranks together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvictionFormula {
    /// Floating-point operations: of attending rows, of their scores, and of tokens that are
    /// written to measure their attention.
    pub flops: f64,
    /// Bytes of weights, keys and values that are read, and of copied ones.
    pub memory_traffic_bytes: u64,
    /// Bytes that ranks receive.
    pub received_bytes: u64,
}

impl From<&Evicting> for EvictionFormula {
    fn from(evicting: &Evicting) -> Self {
        let weights = |work: &RankWork| work.products.iter().map(|products| products.weight_bytes).sum::<f64>();
        let works = || evicting.ranks.iter().chain(&evicting.drafting);
        let traffic = works().map(|work| weights(work) + work.kv_bytes).sum::<f64>();
        Self {
            flops: works().map(RankWork::flops).sum(),
            memory_traffic_bytes: traffic as u64,
            received_bytes: evicting.received().iter().sum(),
        }
    }
}

/// The eviction of a plan; `None` if nothing was evicted.
pub(super) fn evicted(planned: &Planned, reports: &[RankReport], shape: &ModelShape) -> Option<EvictedRow> {
    let plan = &planned.plan;
    let evict = plan.evict.as_ref()?;
    let parts: Vec<_> = reports.iter().filter_map(|report| report.evicted).collect();
    if parts.is_empty() {
        return None;
    }
    let entries = (shape.layers * shape.kv_heads) as f64;
    let of_evict = |report: &RankReport| {
        report.spans.iter().filter(|span| span.phase == Phase::Evict).map(|span| span.seconds).sum::<f64>()
    };
    Some(EvictedRow {
        method: evict.descriptor().name,
        rows: parts.iter().map(|part| part.rows_before).sum::<u64>() as f64 / entries,
        kept_rows: parts.iter().map(|part| part.rows_kept).sum::<u64>() as f64 / entries,
        bytes_before: parts.iter().map(|part| part.bytes_before).sum(),
        bytes_kept: parts.iter().map(|part| part.bytes_kept).sum(),
        gathered: evict.gather,
        asking_rows: parts.iter().map(|part| part.asking_rows).sum(),
        received_bytes: parts.iter().map(|part| part.received_bytes).sum(),
        ms: ms(reports.iter().map(of_evict).fold(0.0, f64::max)),
        formula: Evicting::new(plan, planned.world, shape).as_ref().map(EvictionFormula::from).unwrap_or_default(),
    })
}

impl EvictedRow {
    /// The same as a note for readers.
    pub(super) fn note(&self) -> String {
        let Self { method, rows, kept_rows, bytes_before, bytes_kept, gathered, ms, .. } = self;
        let gathered = if *gathered { ", gathered on one rank" } else { "" };
        format!(
            "{method} keeps {kept_rows} of {rows} rows a layer and KV head for decoding{gathered}, {bytes_kept} of {bytes_before} bytes, \
             chosen in {ms:.2} ms after the first token; what follows is approximate"
        )
    }
}
