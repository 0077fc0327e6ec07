//! The work of methods that split the sequence, regardless of its content.

use std::ops::Range;

use tributary_protocol::Prefill;
use tributary_protocol::deal::{blocks, shards};

use super::{Count, RankWork, triangle};

impl Count<'_> {
    /// Shards of the whole prompt, if the method has them. Rows count on the rank that they are
    /// dealt to; pairs on the rank of their rows, or, under pass-Q, of their keys.
    pub(super) fn shards(&self) -> Option<Vec<RankWork>> {
        let total = self.plan.total_rows();
        let prefill = self.plan.method.prefill;
        let places = self.plan.places(&self.plan.request_order());
        let shard = |(rank, rows): (usize, Vec<u32>)| {
            let asked = usize::from(rank == self.plan.owner);
            let before = rows.iter().map(|&row| f64::from(places[row as usize]));
            let (pairs, last_pairs): (f64, usize) = match prefill {
                Prefill::Queries => (before.map(|before| total as f64 - before).sum(), rows.len()),
                _ => (before.map(|before| before + 1.0).sum(), asked * total),
            };
            let mut work = self.prompt(rows.len(), asked, pairs, last_pairs as f64);
            if matches!(prefill, Prefill::Ring | Prefill::Queries) {
                // Every arriving shard, or every asked rank, gives a partial result, which is
                // merged with the previous one.
                work.merged = (self.world - 1) as f64 * work.attending_rows * self.partial();
            }
            work
        };
        let shards = shards(self.plan, self.world)?;
        Some(shards.into_iter().enumerate().map(shard).collect())
    }

    /// Blocks after an anchor, which every rank with a block computes, if the method has them.
    pub(super) fn blocks(&self) -> Option<Vec<RankWork>> {
        let blocks = blocks(self.plan, self.world)?;
        let rank = |rank: usize| {
            let own = &blocks.of_ranks[rank];
            let anchor = blocks.borrowed(rank).len();
            let seen_of = |block: &Range<u32>| if block.start > 0 { blocks.anchor.len() } else { 0 };
            let after = |block: &Range<u32>| (block.len() * seen_of(block)) as f64 + triangle(block.len());
            let pairs = triangle(anchor) + own.iter().map(after).sum::<f64>();
            let rows = anchor + own.iter().map(|block| block.len()).sum::<usize>();
            if !blocks.pass_on() {
                return self.prompt(rows, 0, pairs, 0.0);
            }
            // Rows of the query after each block, and rows that are passed on to later blocks or to
            // the query's rows on any rank.
            let query = self.plan.query_tokens();
            let passed: usize = blocks.passed_counts().iter().sum();
            let passed_to = |block: &Range<u32>| {
                let before = blocks.of_ranks.iter().flatten().filter(|other| other.start < block.start);
                let before: usize = before.map(|other| blocks.passed_of(other)).sum();
                block.len() * before + query * (passed - blocks.passed_of(block))
            };
            let of_query = |block: &Range<u32>| (query * (block.len() + seen_of(block))) as f64 + triangle(query);
            let more: f64 = own.iter().map(|block| of_query(block) + passed_to(block) as f64).sum();
            let rows = rows + own.len() * query;
            let mut work = self.prompt(rows, 0, pairs + more, 0.0);
            // Scores are a second product of queries and keys: half of a pair's FLOPs.
            let scored: usize = own.iter().map(|block| query * blocks.candidates(block).len()).sum();
            let layers = (self.shape.layers - 1) as f64;
            work.probe = self.pair_flops() * layers * scored as f64 / 2.0;
            work.merged = layers * (rows - anchor) as f64 * self.partial();
            work
        };
        Some((0..self.world).map(rank).collect())
    }

    /// The query's rows after the blocks: on the owner, and on every rank with keys that they see.
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
