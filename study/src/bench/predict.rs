//! Predictions of the planner for a point: the one place where the study asks it. Missing
//! predictions stay 0 and are not shown.

use crate::schema::{Cache, PhaseTime, Prediction};
use tributary_planner::cost::{Selected, bytes, work_of};
use tributary_planner::forecast::{Counted, Profile, StoreRates};
use tributary_planner::{ModelShape, Planned};
use tributary_protocol::Outcome;

/// The prediction for a plan: FLOPs, bytes and memory; times on the machine of a profile, if there
/// is one with this number of ranks. `cache` gives the source of chunks, `selected` the rows that
/// are expected to be recomputed.
pub fn predict(
    (planned, selected): (&Planned, &Selected),
    shape: &ModelShape,
    profile: Option<&Profile>,
    cache: Cache,
) -> Prediction {
    let (plan, world, memory_bytes) = (&planned.plan, planned.world, planned.memory_bytes);
    // For files from the disk, the profile's rates of those in memory do not hold.
    let profile = profile
        .filter(|profile| world <= profile.ranks)
        .filter(|profile| !cache.is_stored() || profile.store.is_some());
    let from_disk =
        |profile: &Profile| Profile { store: profile.store.clone().map(StoreRates::from_disk), ..profile.clone() };
    let profile = profile.map(|profile| if cache == Cache::DiskDropped { from_disk(profile) } else { profile.clone() });
    let Some(profile) = &profile else {
        let work = work_of(plan, world, shape, selected);
        return Prediction {
            total_flops: work.total_flops(),
            critical_flops: work.critical_flops(),
            received_bytes: bytes::received(plan, world, shape, selected).iter().sum(),
            memory_bytes,
            ..Prediction::default()
        };
    };
    let predicted = Counted::given(plan, world, shape, selected).on(plan, profile);
    let phase = |phase: &tributary_planner::forecast::PhaseSeconds| PhaseTime {
        phase: phase.phase.name().to_owned(),
        ms: 1000.0 * phase.seconds,
        waited_ms: 1000.0 * phase.exposed_s,
    };
    Prediction {
        ttft_ms: 1000.0 * predicted.ttft_s,
        ttft_low_ms: 1000.0 * predicted.interval.low_s,
        ttft_high_ms: 1000.0 * predicted.interval.high_s,
        phases: predicted.phases.iter().map(phase).collect(),
        total_flops: predicted.total_flops,
        critical_flops: predicted.critical_flops,
        received_bytes: predicted.received_bytes.iter().sum(),
        memory_bytes,
    }
}

/// Bytes that each rank receives until the first token by the formula, with the selection that was
/// made.
pub fn formula_bytes(planned: &Planned, outcome: &Outcome, shape: &ModelShape) -> Vec<u64> {
    bytes::received(&planned.plan, planned.world, shape, &Selected::from(outcome))
}
