//! Decoding of an answer, and the rows of the prompt that it keeps.

use serde::{Deserialize, Serialize};
use tributary_coordinator::report::EvictionFormula;
use tributary_engine::Answered;

/// An answer after its first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decoding {
    /// Rows of the prompt whose keys and values decoding keeps, the mean over layers and KV heads.
    pub kept_rows: f64,
    /// From the request's acceptance to the last report.
    pub total_ms: f64,
    /// Time of a token after the first, without the eviction; absent where there is none.
    pub token_ms: Option<f64>,
    /// Evicted rows, where there are any.
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
    /// Share of kept rows among those that the answer itself attends to most, the mean over layers
    /// and KV heads; absent without the `ideal` eviction of as many rows in the same evaluation.
    pub recall: Option<f64>,
    /// The planner's formulas for it.
    pub formula: EvictionFormula,
}

impl Decoding {
    /// Kept facts of an answered request.
    pub fn of(answered: &Answered) -> Self {
        let (report, plan) = (&answered.report, &answered.planned.plan);
        let evicted = report.evicted.as_ref();
        Self {
            kept_rows: evicted.map_or(plan.rows_there_at_most() as f64, |evicted| evicted.kept_rows),
            total_ms: report.total_ms,
            token_ms: report.token_ms(),
            evicted: evicted.map(|evicted| Evicted {
                rows: evicted.rows,
                bytes_before: evicted.bytes_before,
                bytes_kept: evicted.bytes_kept,
                received_bytes: evicted.received_bytes,
                ms: evicted.ms,
                recall: None,
                formula: evicted.formula,
            }),
        }
    }
}
