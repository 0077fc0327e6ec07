//! What the planner predicts of a point: the one place where the study asks it. What is not predicted stays 0 and is not
//! shown.

use tributary_comm::wire::Outcome;
use tributary_coordinator::predict::{Profile, Selected, bytes, ttft, work};
use tributary_coordinator::study::schema::{PhaseTime, Prediction};
use tributary_coordinator::{ModelShape, Planned};

/// The prediction for a plan: FLOPs, bytes and memory; with a profile of the machine the time to first token too.
pub fn predict(planned: &Planned, shape: &ModelShape, profile: Option<&Profile>) -> Prediction {
    let (plan, world) = (&planned.plan, planned.world);
    let work = work(plan, world, shape);
    let counted = Prediction {
        total_flops: work.total_flops(),
        critical_flops: work.critical_flops(),
        received_bytes: bytes::expected(plan, world, shape).iter().sum(),
        memory_bytes: planned.memory_bytes,
        ..Prediction::default()
    };
    let Some(profile) = profile else { return counted };
    let predicted = ttft(plan, world, shape, profile);
    let phases = predicted.phases.iter();
    let phases = phases.map(|phase| PhaseTime { phase: phase.phase.name().to_owned(), ms: 1000.0 * phase.seconds });
    Prediction { ttft_ms: 1000.0 * predicted.ttft_s, phases: phases.collect(), ..counted }
}

/// Bytes that each rank receives until the first token by the formula, with the selection that was made.
pub fn formula_bytes(planned: &Planned, outcome: &Outcome, shape: &ModelShape) -> Vec<u64> {
    bytes::received(&planned.plan, planned.world, shape, &Selected::from(outcome))
}
