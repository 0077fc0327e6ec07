//! The clock of the published numbers: time to first token without query pass and first token.
//!
//! Here the query's rows are in the same pass as the selected rows (in an exact method: as the
//! whole prompt). Their share of that pass is estimated from FLOPs and subtracted; their cost
//! beyond FLOPs stays.

use tributary_planner::ModelShape;
use tributary_protocol::{Phase, Plan};

use super::path::PhaseRow;
use crate::dispatch::Answer;

/// Milliseconds on that clock.
pub(super) fn paper_clock_ms(plan: &Plan, answer: &Answer, phases: &[PhaseRow], shape: &ModelShape) -> f64 {
    let of = |phase: Phase| {
        let row = phases.iter().find(|row| row.phase == phase.name());
        row.map_or(0.0, |row| row.critical_path_ms)
    };
    let is_prefill = plan.method.is_exact() || plan.method.prefill.is_whole() || plan.continues.is_some();
    let query_ms = if is_prefill {
        of(Phase::ChunkPrefill) * exact_share(plan, answer, shape)
    } else {
        of(Phase::Recompute) * recompute_share(plan, answer, shape)
    };
    1000.0 * answer.ttft.as_secs_f64() - of(Phase::FirstToken) - query_ms
}

/// FLOPs of the query's rows over those of all rows that were computed: of the whole prompt, or of
/// its rows after a cached prefix.
fn exact_share(plan: &Plan, answer: &Answer, shape: &ModelShape) -> f64 {
    let computed: usize = answer.reports.iter().map(|report| report.prefilled_rows).sum();
    let last = |rows: usize| shape.prefill_flops(rows, plan.total_rows().saturating_sub(rows));
    last(plan.query_tokens().min(computed)) / last(computed).max(1.0)
}

/// FLOPs of the query's rows over those of the recompute pass on the rank that drew the first
/// token. Selected rows count with the keys that an average one sees in the request's own order.
fn recompute_share(plan: &Plan, answer: &Answer, shape: &ModelShape) -> f64 {
    let drew = answer.reports.iter().find(|report| report.drew_first_token);
    let rows = drew.map_or(0, |report| report.recomputed_rows);
    let selected_rows = rows.saturating_sub(plan.query_tokens()) as f64;
    let selected = &answer.outcome.selected;
    let mean_seen = match selected.len() {
        0 => 0.0,
        count => selected.iter().map(|&row| f64::from(row) + 1.0).sum::<f64>() / count as f64,
    };
    let selected_flops =
        selected_rows * (shape.row_flops() + shape.pair_flops() * mean_seen * shape.share_of_row(mean_seen));
    let query_flops = query_flops(plan, shape);
    query_flops / (query_flops + selected_flops)
}

fn query_flops(plan: &Plan, shape: &ModelShape) -> f64 {
    shape.prefill_flops(plan.query_tokens(), plan.prefix_tokens() + plan.context_rows())
}
