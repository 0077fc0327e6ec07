//! The sequence dealt to ranks by methods that split it, whatever is in it.

use std::ops::Range;

use super::{contiguous, zigzag};
use crate::{Plan, Prefill};

/// The sequence split over ranks, each rank's rows ascending, the last row on the plan's owner; none where the method does not
/// split it.
pub fn shards(plan: &Plan, world: usize) -> Option<Vec<Vec<u32>>> {
    let prefill = plan.method.prefill();
    let mut shards = match prefill {
        Prefill::Ring | Prefill::Queries => zigzag(plan.total_rows(), world),
        Prefill::Anchored { block_rows } => {
            let blocks = dealt_blocks(plan, block_rows, world);
            let mut shards: Vec<Vec<u32>> =
                blocks.into_iter().map(|blocks| blocks.into_iter().flatten().collect()).collect();
            shards[world - 1].extend(plan.query_rows());
            shards
        }
        Prefill::Gathered { .. } => contiguous(plan.total_rows(), world),
        Prefill::Whole | Prefill::Chunks(_) => return None,
    };
    assert!(plan.owner < world, "rank {} of {world} is the owner", plan.owner);
    // Dealt to ranks 0 to world − 1 the last row is on the usual owner; every rank hands its shard on.
    shards.rotate_right((plan.owner + world - usual_owner(prefill, world)) % world);
    assert_eq!(shards.iter().map(Vec::len).sum::<usize>(), plan.total_rows(), "rows of all shards");
    let last_row = plan.total_rows().checked_sub(1).map(|row| row as u32);
    assert_eq!(shards[plan.owner].last().copied(), last_row, "the last row on its owner, rank {}", plan.owner);
    Some(shards)
}

/// The blocks of prefix and context that each rank computes behind the first one, ascending, where the method works in blocks; none where
/// it does not. The first block is the first rank's that has one.
pub fn blocks(plan: &Plan, world: usize) -> Option<Vec<Vec<Range<u32>>>> {
    let prefill = plan.method.prefill();
    let Prefill::Anchored { block_rows } = prefill else { return None };
    let mut blocks = dealt_blocks(plan, block_rows, world);
    blocks.rotate_right((plan.owner + world - usual_owner(prefill, world)) % world);
    Some(blocks)
}

/// Blocks in runs for ranks 0 to world − 1.
fn dealt_blocks(plan: &Plan, block_rows: Option<usize>, world: usize) -> Vec<Vec<Range<u32>>> {
    let rows = plan.total_rows() - plan.query_tokens();
    let block_rows = block_rows.unwrap_or(rows.div_ceil(world)).max(1);
    let block = |index: u32| {
        let from = index as usize * block_rows;
        from as u32..rows.min(from + block_rows) as u32
    };
    let runs = contiguous(rows.div_ceil(block_rows), world);
    runs.into_iter().map(|run| run.into_iter().map(block).collect()).collect()
}

/// The owner of a plan if the planner has no reason for another: the rank to which zigzag deals the last row, else the last rank.
pub fn usual_owner(prefill: Prefill, world: usize) -> usize {
    match prefill {
        Prefill::Ring | Prefill::Queries => 0,
        Prefill::Whole | Prefill::Gathered { .. } | Prefill::Anchored { .. } | Prefill::Chunks(_) => world - 1,
    }
}
