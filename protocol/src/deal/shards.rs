//! The sequence dealt to ranks by methods that split it, whatever is in it.

use super::{contiguous, zigzag};
use crate::{Plan, Prefill};

/// The sequence split over ranks, each rank's rows ascending, the last row on the plan's owner; none where the method does not
/// split it.
pub fn shards(plan: &Plan, world: usize) -> Option<Vec<Vec<u32>>> {
    let prefill = plan.method.prefill();
    let mut shards = match prefill {
        Prefill::Ring => zigzag(plan.total_rows(), world),
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

/// The owner of a plan if the planner has no reason for another: the rank to which zigzag deals the last row, else the last rank.
pub fn usual_owner(prefill: Prefill, world: usize) -> usize {
    match prefill {
        Prefill::Ring => 0,
        Prefill::Whole | Prefill::Gathered { .. } | Prefill::Chunks(_) => world - 1,
    }
}
