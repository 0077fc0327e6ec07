//! What decoding keeps of a prompt: of an answer, and what choosing it costs by the planner's formulas.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_coordinator::cost::Evicting;
use tributary_coordinator::{ModelShape, Planned, Report};
use tributary_engine::Answered;

/// An answer behind its first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decoding {
    /// Rows of the prompt whose keys and values decoding keeps, the mean over layers and KV heads.
    pub kept_rows: f64,
    /// From the request's acceptance to the last report.
    pub total_ms: f64,
    /// Time of a token behind the first, without the eviction; absent where there is none.
    pub token_ms: Option<f64>,
    /// What was evicted, where something was.
    pub evicted: Option<Evicted>,
}

/// An eviction between the first token and the second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evicted {
    /// Rows of the prompt that there were.
    pub rows: f64,
    /// Bytes of keys and values of the prompt before.
    pub bytes_before: u64,
    /// Bytes of them that are left.
    pub bytes_kept: u64,
    /// Bytes that moved between ranks for it.
    pub received_bytes: u64,
    /// Its time, on the rank where it took longest.
    pub ms: f64,
}

/// What an eviction costs by the planner's formulas, all ranks together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct EvictionFormula {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Billions of floating-point operations: rows that look, their scores, and tokens that are generated to look.
    pub gflop: f64,
    /// Bytes of keys and values that it reads and copies.
    pub kv_bytes: u64,
    /// Bytes that ranks receive.
    pub received_bytes: u64,
}

impl EvictionFormula {
    /// Of a plan; nothing where it evicts nothing.
    pub fn of(planned: &Planned, shape: &ModelShape) -> Option<Self> {
        let evicting = Evicting::new(&planned.plan, planned.world, shape)?;
        Some(Self {
            prompt_tokens: planned.plan.total_rows(),
            gflop: evicting.ranks.iter().map(|work| work.flops()).sum::<f64>() / 1e9,
            kv_bytes: evicting.ranks.iter().map(|work| work.kv_bytes).sum::<f64>() as u64,
            received_bytes: evicting.received().iter().sum(),
        })
    }
}

impl Decoding {
    /// What is kept of an answered request.
    pub fn of(answered: &Answered) -> Self {
        let (report, plan) = (&answered.report, &answered.planned.plan);
        let evicted = report.evicted.as_ref();
        Self {
            kept_rows: evicted.map_or(plan.rows_there_at_most() as f64, |evicted| evicted.kept_rows),
            total_ms: report.total_ms,
            token_ms: token_ms(report),
            evicted: evicted.map(|evicted| Evicted {
                rows: evicted.rows,
                bytes_before: evicted.bytes_before,
                bytes_kept: evicted.bytes_kept,
                received_bytes: evicted.received_bytes,
                ms: evicted.ms,
            }),
        }
    }
}

fn token_ms(report: &Report) -> Option<f64> {
    let behind = report.tokens.generated.checked_sub(1).filter(|count| *count > 0)?;
    let evict_ms = report.evicted.as_ref().map_or(0.0, |evicted| evicted.ms);
    Some((report.total_ms - report.ttft_ms - evict_ms).max(0.0) / behind as f64)
}
