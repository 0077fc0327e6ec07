//! The work of methods that split the sequence, whatever is in it.

use tributary_protocol::Prefill;
use tributary_protocol::deal::{blocks, shards};

use super::{Count, RankWork, triangle};

impl Count<'_> {
    /// Shards of the whole prompt, if the method has them: rows where they are dealt, pairs where their rows, or under pass-Q their keys,
    /// are.
    pub(super) fn shards(&self) -> Option<Vec<RankWork>> {
        let total = self.plan.total_rows();
        let prefill = self.plan.method.prefill();
        let shard = |(rank, rows): (usize, Vec<u32>)| {
            let asked = usize::from(rank == self.plan.owner);
            let (pairs, last_pairs): (f64, usize) = match prefill {
                Prefill::Queries => (rows.iter().map(|&row| total as f64 - f64::from(row)).sum(), rows.len()),
                _ => (rows.iter().map(|&row| f64::from(row) + 1.0).sum(), asked * total),
            };
            let mut work = self.prompt(rows.len(), asked, pairs, last_pairs as f64);
            if matches!(prefill, Prefill::Ring | Prefill::Queries) {
                // Every shard that comes, or every rank that is asked, leaves a partial result, which is merged with what was there.
                work.merged = (self.world - 1) as f64 * work.attending_rows * self.partial();
            }
            work
        };
        let shards = shards(self.plan, self.world)?;
        Some(shards.into_iter().enumerate().map(shard).collect())
    }

    /// Blocks behind the first one, which every rank with a block computes, if the method has them.
    pub(super) fn blocks(&self) -> Option<Vec<RankWork>> {
        let blocks = blocks(self.plan, self.world)?;
        let anchor = blocks.iter().flatten().find(|block| block.start == 0).map_or(0, |block| block.len());
        let rank = |own: &Vec<std::ops::Range<u32>>| {
            let others = || own.iter().filter(|block| block.start > 0).map(|block| block.len());
            let anchor_rows = if own.is_empty() { 0 } else { anchor };
            let behind = |rows: usize| (rows * anchor) as f64 + triangle(rows);
            let pairs = triangle(anchor_rows) + others().map(behind).sum::<f64>();
            self.prompt(anchor_rows + others().sum::<usize>(), 0, pairs, 0.0)
        };
        Some(blocks.iter().map(rank).collect())
    }

    /// The query's rows behind the blocks: on the owner, and wherever keys are that they see.
    pub(super) fn query_over_blocks(&self) -> Vec<RankWork> {
        let (query, owner) = (self.plan.query_tokens(), self.plan.owner);
        let shards = shards(self.plan, self.world).unwrap_or_default();
        let rank = |(rank, rows): (usize, &Vec<u32>)| {
            let owns = usize::from(rank == owner);
            let kept = rows.len() - owns * query;
            let pairs = (query * kept) as f64 + if rank == owner { triangle(query) } else { 0.0 };
            let mut work = self.prompt(owns * query, owns, pairs, rows.len() as f64);
            work.merged = (self.shape.layers * owns * query * (self.world - 1)) as f64 * self.partial();
            work.elementwise += (self.shape.layers * kept) as f64 * 4.0 * self.shape.kv_width() as f64;
            work
        };
        shards.iter().enumerate().map(rank).collect()
    }
}
