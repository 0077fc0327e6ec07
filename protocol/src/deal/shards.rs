//! Deals the sequence to ranks for methods that split it, regardless of its content.

use std::ops::Range;

use super::{contiguous, zigzag};
use crate::{Plan, Prefill};

/// The sequence split over ranks, each rank's rows in causal order, the last row on the plan's
/// owner.
/// `None` if the method does not split it.
pub fn shards(plan: &Plan, world: usize) -> Option<Vec<Vec<u32>>> {
    let prefill = plan.method.prefill;
    let mut shards = match prefill {
        Prefill::Ring | Prefill::Queries => zigzag(plan.total_rows(), world),
        Prefill::Anchored { block_rows, .. } => {
            let blocks = dealt_blocks(plan, block_rows_of(plan, block_rows, world), world);
            let mut shards: Vec<Vec<u32>> =
                blocks.into_iter().map(|blocks| blocks.into_iter().flatten().collect()).collect();
            shards[world - 1].extend(plan.query_rows());
            shards
        }
        Prefill::Gathered { .. } => contiguous(plan.total_rows(), world),
        Prefill::Whole { .. } | Prefill::Chunks(_) | Prefill::Selected(_) => return None,
    };
    assert!(plan.owner < world, "rank {} of {world} is the owner", plan.owner);
    if plan.groups().len() < plan.chunks.len() {
        // Rows of a picture's tiles alternate.
        let mut sequence = vec![0; plan.total_rows()];
        (0..).zip(plan.places(&plan.request_order())).for_each(|(row, place)| sequence[place as usize] = row);
        shards.iter_mut().flatten().for_each(|row| *row = sequence[*row as usize]);
    }
    // With ranks 0 to world − 1 the last row is on the usual owner; every rank passes its shard on.
    shards.rotate_right((plan.owner + world - usual_owner(prefill, world)) % world);
    assert_eq!(shards.iter().map(Vec::len).sum::<usize>(), plan.total_rows(), "rows of all shards");
    let last_row = plan.total_rows().checked_sub(1).map(|row| row as u32);
    assert_eq!(shards[plan.owner].last().copied(), last_row, "the last row on its owner, rank {}", plan.owner);
    Some(shards)
}

/// Blocks in which prefix and context are computed, and the rows that they share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// Blocks of each rank, ascending. The first block belongs to the first rank that has one.
    pub of_ranks: Vec<Vec<Range<u32>>>,
    /// Rows that every block sees: the first block, or its first rows and as many more as the lead
    /// has.
    pub anchor: Range<u32>,
    /// Rows of a block. The first one has the lead's besides; the last one may have fewer.
    pub block_rows: usize,
    /// Maximum number of rows that a block passes on to later blocks.
    pub passed: usize,
}

impl Blocks {
    /// Rows of a block that it may pass on: all but the anchor's, which every block sees already.
    pub fn candidates(&self, block: &Range<u32>) -> Range<u32> {
        self.anchor.end.clamp(block.start, block.end)..block.end
    }

    /// Number of rows that a block passes on; 0 if no other block could see them.
    pub fn passed_of(&self, block: &Range<u32>) -> usize {
        let alone = self.of_ranks.iter().map(Vec::len).sum::<usize>() < 2;
        if alone { 0 } else { self.passed.min(self.candidates(block).len()) }
    }

    /// [`passed_of`](Self::passed_of) for all blocks of each rank.
    pub fn passed_counts(&self) -> Vec<usize> {
        let of = |blocks: &Vec<Range<u32>>| blocks.iter().map(|block| self.passed_of(block)).sum();
        self.of_ranks.iter().map(of).collect()
    }

    /// Whether any block passes rows on. Each block then has its own rows of the query, whose
    /// attention chooses them.
    pub fn pass_on(&self) -> bool {
        self.passed_counts().into_iter().any(|passed| passed > 0)
    }

    /// Anchor rows that a rank computes in addition to its blocks: all, or none if it has the first
    /// block or no block.
    pub fn borrowed(&self, rank: usize) -> Range<u32> {
        let own = &self.of_ranks[rank];
        if own.is_empty() || own.iter().any(|block| block.start == 0) { 0..0 } else { self.anchor.clone() }
    }
}

/// Blocks that each rank computes after an anchor; `None` if the method does not work in blocks.
pub fn blocks(plan: &Plan, world: usize) -> Option<Blocks> {
    let prefill = plan.method.prefill;
    let Prefill::Anchored { block_rows, passing } = prefill else { return None };
    let block_rows = block_rows_of(plan, block_rows, world);
    let mut of_ranks = dealt_blocks(plan, block_rows, world);
    let first = of_ranks.iter().flatten().next().cloned().unwrap_or(0..0);
    of_ranks.rotate_right((plan.owner + world - usual_owner(prefill, world)) % world);
    Some(match passing {
        None => Blocks { of_ranks, anchor: first, block_rows, passed: 0 },
        Some(passing) => {
            let rows = passing.anchor_rows(block_rows).saturating_add(plan.lead_tokens());
            let anchor = 0..first.end.min(u32::try_from(rows).unwrap_or(u32::MAX));
            Blocks { of_ranks, anchor, block_rows, passed: passing.passed_rows(block_rows) }
        }
    })
}

/// Rows of a block: an equal part for every rank where absent.
fn block_rows_of(plan: &Plan, block_rows: Option<usize>, world: usize) -> usize {
    block_rows.unwrap_or(rows_in_blocks(plan).div_ceil(world)).max(1)
}

/// Rows of prefix and context that make up blocks: all but the lead, which the first block has in
/// addition.
fn rows_in_blocks(plan: &Plan) -> usize {
    plan.total_rows() - plan.query_tokens() - plan.lead_tokens()
}

/// Blocks in runs for ranks 0 to world − 1.
fn dealt_blocks(plan: &Plan, block_rows: usize, world: usize) -> Vec<Vec<Range<u32>>> {
    let (rows, lead) = (rows_in_blocks(plan), plan.lead_tokens());
    let block = |index: u32| {
        let from = index as usize * block_rows;
        let first = if index == 0 { 0 } else { from + lead };
        first as u32..(rows.min(from + block_rows) + lead) as u32
    };
    let runs = contiguous(rows.div_ceil(block_rows), world);
    runs.into_iter().map(|run| run.into_iter().map(block).collect()).collect()
}

/// Default owner of a plan: the rank to which zigzag deals the last row, else the last rank.
pub fn usual_owner(prefill: Prefill, world: usize) -> usize {
    match prefill {
        Prefill::Ring | Prefill::Queries => 0,
        Prefill::Whole { .. }
        | Prefill::Gathered { .. }
        | Prefill::Anchored { .. }
        | Prefill::Chunks(_)
        | Prefill::Selected(_) => world - 1,
    }
}
