//! What the planner predicts of a point: the one place where the study asks it. What is not predicted stays 0 and is not
//! shown.

use crate::schema::{PhaseTime, Prediction};
use tributary_coordinator::cost::{Selected, bytes, work};
use tributary_coordinator::forecast::{Profile, ttft};
use tributary_coordinator::{ModelShape, Planned};
use tributary_protocol::Outcome;

/// The prediction for a plan: FLOPs, bytes and memory; times on the machine of a profile, if there is one and it
/// has so many ranks.
pub fn predict(planned: &Planned, shape: &ModelShape, profile: Option<&Profile>) -> Prediction {
    let (plan, world, memory_bytes) = (&planned.plan, planned.world, planned.memory_bytes);
    let Some(profile) = profile.filter(|profile| world <= profile.ranks) else {
        let work = work(plan, world, shape);
        return Prediction {
            total_flops: work.total_flops(),
            critical_flops: work.critical_flops(),
            received_bytes: bytes::expected(plan, world, shape).iter().sum(),
            memory_bytes,
            ..Prediction::default()
        };
    };
    let predicted = ttft(plan, world, shape, profile);
    let phase = |phase: &tributary_coordinator::forecast::PhaseSeconds| PhaseTime {
        phase: phase.phase.name().to_owned(),
        ms: 1000.0 * phase.seconds,
        waited_ms: 1000.0 * phase.exposed_s,
    };
    Prediction {
        ttft_ms: 1000.0 * predicted.ttft_s,
        phases: predicted.phases.iter().map(phase).collect(),
        total_flops: predicted.total_flops,
        critical_flops: predicted.critical_flops,
        received_bytes: predicted.received_bytes.iter().sum(),
        memory_bytes,
    }
}

/// Bytes that each rank receives until the first token by the formula, with the selection that was made.
pub fn formula_bytes(planned: &Planned, outcome: &Outcome, shape: &ModelShape) -> Vec<u64> {
    bytes::received(&planned.plan, planned.world, shape, &Selected::from(outcome))
}
