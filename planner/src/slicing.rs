//! Slices of a layer: how many rows are computed between two control points, so that sequences in
//! decoding do not wait long for a layer of a long prompt.

use std::time::Duration;

use tributary_protocol::Plan;

use crate::ModelShape;

/// Least number of rows in a slice that the planner chooses: fewer cost more than they save.
const LEAST_ROWS: f64 = 64.0;

/// Share of the gap that a slice is planned to take: rates are those of many rows, and the steps of
/// decoding take their time too.
const SHARE: f64 = 0.5;

/// How layers of long prompts are cut.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Slicing {
    /// They are not.
    #[default]
    Whole,
    /// A slice has at most this number of rows.
    Rows(u32),
    /// A slice takes at most this time, by the machine's rates.
    Within(Duration),
}

impl Slicing {
    /// The number of rows of a slice of a plan's layers on a rank with these FLOPs a second; 0 for
    /// whole layers.
    pub(crate) fn rows(self, plan: &Plan, shape: &ModelShape, flops_per_s: f64) -> u32 {
        match self {
            Slicing::Whole => 0,
            Slicing::Rows(rows) => rows,
            Slicing::Within(gap) => {
                let attention = shape.pair_flops() / shape.layers.max(1) as f64 * plan.total_rows() as f64;
                let before = shape.layer_kv_flops() + shape.layer_query_flops();
                // The largest of the three places of a layer that are cut.
                let row_flops = attention.max(before).max(shape.layer_finish_flops());
                let rows = (SHARE * gap.as_secs_f64() * flops_per_s / row_flops).max(LEAST_ROWS);
                if rows >= plan.total_rows() as f64 { 0 } else { rows as u32 }
            }
        }
    }
}
