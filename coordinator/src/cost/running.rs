//! Memory of a sequence while it is decoded: what every rank keeps of a request behind its first token.
//!
//! Per row of keys and values κ bytes (all layers): its key turned to its position, and its value. A value that lies in the chunk
//! cache is shared with it and is not counted. W ranks, N rows of prompt, s recomputed rows (beside the stale ones that they
//! stand in for), m tokens to generate at most.
//!
//! | where | rank r keeps |
//! | --- | --- |
//! | the owner holds everything | N + s + m rows on the owner, nothing elsewhere |
//! | an exact method's shards | its shard; m more on the owner |
//! | all but some rows of the chunks are dropped | as above, without the context's rows beside the recomputed ones |
//! | chunks stay where they are | its chunks, as many recomputed rows as fall on them (at most s); prefix, query and m on the owner |

use tributary_protocol::deal::shards;
use tributary_protocol::{Plan, Prefill};

use crate::ModelShape;

/// Bytes that each rank keeps until the sequence is released; nothing where one token is all.
pub fn running_bytes(plan: &Plan, world: usize, shape: &ModelShape) -> Vec<u64> {
    if plan.max_tokens <= 1 {
        return vec![0; world];
    }
    (0..world)
        .map(|rank| rows(plan, world, rank) as u64 * shape.kv_bytes() - shared(plan, world, rank, shape))
        .collect()
}

/// Rows whose keys and values a rank keeps.
fn rows(plan: &Plan, world: usize, rank: usize) -> usize {
    let is_owner = rank == plan.owner;
    let generated = if is_owner { plan.max_tokens } else { 0 };
    if plan.decodes_alone(world) {
        let context = if plan.drops().is_some() { 0 } else { plan.context_rows() };
        let around = plan.prefix_tokens() + plan.query_tokens();
        return if is_owner { around + context + plan.budget + generated } else { 0 };
    }
    if plan.method.prefill() != Prefill::Whole
        && let Some(shards) = shards(plan, world)
    {
        return shards[rank].len() + generated;
    }
    let kept = plan.kept_counts(world)[rank];
    let around = if is_owner { plan.prefix_tokens() + plan.query_tokens() } else { 0 };
    if plan.drops().is_some() {
        return plan.kept_at_most(world)[rank] + around + generated;
    }
    kept + plan.budget.min(kept) + around + generated
}

/// Bytes of values that lie in the chunk cache, on the rank that keeps them.
fn shared(plan: &Plan, world: usize, rank: usize, shape: &ModelShape) -> u64 {
    let keeps = !plan.decodes_alone(world) || rank == plan.owner;
    let in_chunks = plan.method.selection().is_some() && plan.drops().is_none();
    if keeps && in_chunks { plan.warm_counts(world)[rank] as u64 * shape.kv_bytes() / 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::Exchange;

    use super::*;
    use crate::kit::{planned, warm};
    use crate::shape::tests::QWEN3_14B;

    #[test]
    fn the_owner_keeps_everything_or_every_rank_its_part() {
        let kv = QWEN3_14B.kv_bytes();
        let of = |plan: &Plan| running_bytes(plan, 4, &QWEN3_14B);
        let plan =
            Plan { max_tokens: 32, exchange: Exchange::Replicate, ..planned("infoflow", 8192, 2048, 4, &QWEN3_14B) };
        let (all, owner) = (plan.total_rows() + plan.budget + 32, plan.owner);
        let mut alone = [0; 4];
        alone[owner] = all as u64 * kv;
        assert_eq!(of(&plan), alone);
        let cached = warm(plan.clone());
        assert_eq!(of(&plan)[owner] - of(&cached)[owner], 2048 * kv / 2, "the values of its own chunk");
        let pass_q = Plan { exchange: Exchange::PassQ, ..plan.clone() };
        let each = of(&pass_q);
        assert!((0..4).all(|rank| each[rank] >= 2048 * kv && each[rank] < 4000 * kv), "{each:?}");
        assert!(each[owner] > each[(owner + 1) % 4]);
        let ring = Plan { max_tokens: 32, ..planned("ring", 8192, 2048, 4, &QWEN3_14B) };
        assert_eq!(of(&ring).iter().sum::<u64>(), (ring.total_rows() + 32) as u64 * kv);
        assert_eq!(of(&Plan { max_tokens: 1, ..plan }), [0; 4]);
    }
}
