//! Cost of joining cached rows before they are sent to the other ranks: chunks lie in a block each,
//! and leave as one.

use tributary_protocol::{Phase, Plan, Prefill};

use crate::ModelShape;

/// Numbers that each rank reads and writes to join its rows, and the phase in which it does. `None`
/// if no rows leave, or if they leave as they were computed.
pub fn packing(plan: &Plan, world: usize, shape: &ModelShape) -> Option<(Phase, Vec<f64>)> {
    let leaves = world > 1 && matches!(plan.method.prefill, Prefill::Chunks(_)) && plan.replicates_stale();
    if !leaves || !plan.chunks.iter().any(|chunk| chunk.warm) {
        return None;
    }
    let phase = match () {
        // Cold rows leave while they are computed, and warm ones with them.
        () if plan.chunks.iter().any(|chunk| !chunk.warm) => Phase::ChunkPrefill,
        () if plan.reorders() => Phase::Reorder,
        () if plan.probes() => Phase::Probe,
        () => Phase::Recompute,
    };
    let row = 2.0 * shape.layers as f64 * (shape.kv_bytes() as usize / shape.layers / shape.dtype_bytes) as f64;
    let own = plan.held_counts(world).into_iter().zip(plan.held_warm_counts(world));
    let numbers = own.map(|(kept, warm)| if warm > 0 { kept as f64 * row } else { 0.0 });
    Some((phase, numbers.collect()))
}

#[cfg(test)]
mod tests {
    use tributary_protocol::Exchange;

    use super::*;
    use crate::kit::{planned, warm};
    use crate::shape::tests::QWEN3_14B;

    #[test]
    fn only_cached_rows_that_leave_are_put_together() {
        let of = |plan: &Plan| packing(plan, 4, &QWEN3_14B);
        let cold = Plan { exchange: Exchange::Replicate, ..planned("infoflow", 8192, 2048, 4, &QWEN3_14B) };
        assert_eq!(of(&cold), None);
        let all = warm(cold.clone());
        let (phase, numbers) = of(&all).unwrap();
        // A chunk a rank: its keys and values, read and written.
        let kv_numbers = (2048 * QWEN3_14B.kv_bytes() as usize / QWEN3_14B.dtype_bytes) as f64;
        assert_eq!((phase, numbers), (Phase::Probe, vec![2.0 * kv_numbers; 4]));
        let mut one = cold;
        one.chunks[0].warm = true;
        let (phase, numbers) = of(&one).unwrap();
        assert_eq!((phase, numbers.iter().filter(|&&numbers| numbers > 0.0).count()), (Phase::ChunkPrefill, 1));
        assert_eq!(of(&Plan { exchange: Exchange::PassQ, ..all.clone() }), None);
        assert_eq!(packing(&all, 1, &QWEN3_14B), None);
        assert_eq!(
            of(&Plan { method: planned("epic", 8192, 2048, 4, &QWEN3_14B).method, ..all }).unwrap().0,
            Phase::Recompute
        );
    }
}
