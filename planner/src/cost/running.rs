//! Memory of a sequence during decoding: the data that every rank keeps of a request after its
//! first token.
//!
//! Per row of keys and values κ bytes (all layers): its key turned to its position, and its value.
//! A value that lies in the chunk cache is shared with it and is not counted. W ranks, N rows of
//! prompt, s recomputed rows (beside the stale ones that they stand in for), m tokens to generate
//! at most.
//!
//! | where | rank r keeps |
//! | --- | --- |
//! | the owner holds everything | N + s + m rows on the owner, nothing elsewhere |
//! | an exact method's shards | its shard; m more on the owner |
//! | all but some rows of the chunks are dropped | as above, without the context's rows beside the recomputed ones |
//! | rows are evicted, and kept rows are on the owner | C + m rows there (C a layer in the mean), and three numbers a row and KV head for its position |
//! | rows are evicted, and kept rows stay | at most the number that a KV head keeps, of those that it holds; m more on the owner |
//! | chunks were compressed | as above with the rows that they keep, and four numbers a row and KV head |
//! | it goes on from a kept sequence | what the conversation's first request keeps; all later rows on the owner. Rows that both share count twice while the kept one is there |
//! | chunks stay where they are | its chunks, as many recomputed rows as fall on them (at most s); prefix, query and m on the owner |
//!
//! Layers with a sliding window of w tokens keep at most w rows of those of the prompt (some more
//! if the sequence is kept), unless the plan keeps all ([`Plan::windows_from`]). So do they of the
//! answer's, in pieces, if the sequence is not kept.

use tributary_protocol::deal::shards;
use tributary_protocol::{Chunk, Evict, Plan};

use super::evicting::held_rows;
use super::windows::{most_of_prompt, token_bytes, windows};
use crate::ModelShape;

/// Bytes that each rank keeps until the sequence is released; 0 if only one token is generated, and
/// the sequence is not kept for later.
pub fn running_bytes(plan: &Plan, world: usize, shape: &ModelShape) -> Vec<u64> {
    if plan.max_tokens <= 1 && !plan.keep_sequence {
        return vec![0; world];
    }
    if let Some(first) = plan.first_turn() {
        let mut bytes = running_bytes(&first, world, shape);
        bytes[plan.owner] += (plan.total_rows() - first.total_rows()) as u64 * shape.kv_bytes();
        return bytes;
    }
    if let Some(evict) = plan.evicts() {
        return kept_bytes(plan, evict, world, shape);
    }
    let windows = windows(plan, shape);
    let in_windows = windows.map_or(0, |windows| windows.layers.len());
    let near = windows.map_or(0, |windows| most_of_prompt(plan, windows));
    let of_rank = |rank: usize| {
        let rows = rows(plan, world, rank);
        let all = (shape.layers - in_windows) * rows + in_windows * rows.min(near);
        // What a window keeps of a cached chunk is copied.
        let shared = (shape.layers - in_windows) * shared(plan, world, rank);
        let answer = if rank == plan.owner { token_bytes(plan, shape).of(plan.max_tokens) } else { 0 };
        all as u64 * shape.layer_kv_bytes() - shared as u64 * shape.layer_kv_bytes() / 2
            + answer
            + places(plan, world, rank, shape)
    };
    (0..world).map(of_rank).collect()
}

/// Bytes of the numbers and positions of the rows that each KV head has of compressed chunks.
fn places(plan: &Plan, world: usize, rank: usize, shape: &ModelShape) -> u64 {
    let is_here = |chunk: &&Chunk| match plan.decodes_alone(world) {
        true => rank == plan.owner,
        false => rank == chunk.rank,
    };
    let compressed = plan.chunks.iter().filter(|chunk| chunk.compress.is_some());
    let rows: usize = compressed.filter(is_here).map(Chunk::held_rows).sum();
    (rows * shape.layers * shape.kv_heads) as u64 * (PLACE_BYTES + 4)
}

/// Position, order and segment of a row in one KV head.
const PLACE_BYTES: u64 = 12;

/// Bytes that each rank keeps after an eviction: none of them is shared.
fn kept_bytes(plan: &Plan, evict: &Evict, world: usize, shape: &ModelShape) -> Vec<u64> {
    let held = held_rows(plan, world);
    // If heads keep the same rows, their positions are stored once, which is little.
    let places = if evict.descriptor().heads_together { 0 } else { PLACE_BYTES * shape.kv_heads as u64 };
    let budgets = evict.budgets(shape.layers, plan.rows_there_at_most());
    let of_rank = |rank: usize| {
        let generated = if rank == plan.owner { plan.max_tokens } else { 0 };
        let most = match (plan.generates_alone(world), rank == plan.owner) {
            (true, true) => plan.total_rows(),
            (true, false) => 0,
            (false, _) => held[rank],
        };
        let rows = |budget: &usize| (*budget).min(most);
        // With parallel contexts, prefix and query are stored apart, each padded to its longest
        // head.
        let apart = if plan.method.parallel().is_some() { plan.prefix_tokens() + plan.query_tokens() } else { 0 };
        let rows = |budget: &usize| if most == 0 { 0 } else { rows(budget) + apart.min(*budget) };
        let rows: usize = budgets.iter().map(rows).sum();
        (rows + shape.layers * generated) as u64 * shape.layer_kv_bytes() + places * rows as u64
    };
    (0..world).map(of_rank).collect()
}

/// Rows of the prompt whose keys and values a rank keeps.
fn rows(plan: &Plan, world: usize, rank: usize) -> usize {
    let is_owner = rank == plan.owner;
    if plan.decodes_alone(world) {
        let context = if plan.drops() { 0 } else { plan.held_counts(world).iter().sum() };
        let around = plan.prefix_tokens() + plan.query_tokens();
        return if is_owner { around + context + plan.budget } else { 0 };
    }
    if !plan.method.prefill.is_whole()
        && let Some(shards) = shards(plan, world)
    {
        return shards[rank].len();
    }
    let kept = plan.kept_counts(world)[rank];
    let around = if is_owner { plan.prefix_tokens() + plan.query_tokens() } else { 0 };
    if plan.drops() {
        return plan.kept_at_most(world)[rank] + around;
    }
    plan.held_counts(world)[rank] + plan.budget.min(kept) + around
}

/// Rows whose values lie in the chunk cache, on the rank that keeps them.
fn shared(plan: &Plan, world: usize, rank: usize) -> usize {
    let keeps = !plan.decodes_alone(world) || rank == plan.owner;
    // The cache may drop the chunk of a kept sequence.
    let in_chunks = plan.method.selection().is_some() && !plan.drops() && !plan.keep_sequence;
    if keeps && in_chunks { plan.held_warm_counts(world)[rank] } else { 0 }
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
