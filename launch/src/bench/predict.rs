//! What the planner predicts of a point: the one place where the study asks it. What is not predicted stays 0 and is not
//! shown.

use tributary_comm::wire::{Method, Outcome};
use tributary_coordinator::study::schema::Prediction;
use tributary_coordinator::{ModelShape, Planned};

/// The prediction for a plan: memory, and the FLOPs of exact methods, which all compute the same rows.
pub fn predict(planned: &Planned, shape: &ModelShape) -> Prediction {
    let exact = matches!(planned.plan.method, Method::Full | Method::Ring | Method::AllGather { .. });
    let total_flops = if exact { shape.prefill_flops(planned.plan.total_tokens(), 0) } else { 0.0 };
    Prediction { total_flops, memory_bytes: planned.memory_bytes, ..Prediction::default() }
}

/// Bytes that each rank receives until the first token by the formula, with the selection that was made. Nothing where
/// there is no formula.
pub fn formula_bytes(_planned: &Planned, _outcome: &Outcome, _shape: &ModelShape) -> Vec<u64> {
    Vec::new()
}
