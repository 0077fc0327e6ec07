//! Facts of a plan after its prefill: the rows left of the prompt, the rank that holds each, and
//! whether rows are evicted.
//! Planner and ranks share them.

use crate::deal::shards;
use crate::{Evict, Plan};

impl Plan {
    /// Rows in the filled cache, given the selected ones: all of the prompt, or, where a method
    /// drops context rows, those that it kept.
    pub fn rows_there(&self, selected: &[u32]) -> Vec<u32> {
        if !self.drops() {
            return (0..self.total_rows() as u32).collect();
        }
        let mut rows: Vec<u32> = (0..self.prefix_tokens() as u32).chain(selected.iter().copied()).collect();
        rows.extend(self.query_rows());
        rows.sort_unstable();
        rows
    }

    /// Maximum number of rows in the filled cache.
    pub fn rows_there_at_most(&self) -> usize {
        let context = self.kept_at_most(self.chunks.iter().map(|chunk| chunk.rank + 1).max().unwrap_or(1));
        let most = if self.drops() { self.budget } else { usize::MAX };
        self.prefix_tokens() + context.into_iter().sum::<usize>().min(most) + self.query_tokens()
    }

    /// The eviction that takes place; `None` if only one token is generated, or if everything is
    /// kept.
    pub fn evicts(&self) -> Option<&Evict> {
        self.evict.as_ref().filter(|evict| self.max_tokens > 1 && evict.keep < self.rows_there_at_most())
    }

    /// Rows after the query that attend to its cache before generation begins and are then
    /// discarded.
    pub fn passing_rows(&self) -> usize {
        self.look_ahead_count().max(self.evicts().map_or(0, Evict::pseudo_tokens))
    }

    /// Whether the owner, among `world` ranks, holds everything that generated rows attend to.
    pub fn generates_alone(&self, world: usize) -> bool {
        self.decodes_alone(world) || self.evicts().is_some_and(|evict| evict.gather)
    }

    /// The rank that holds each row of the prompt in the filled cache.
    /// That is the owner if one rank holds everything; else the rank of the row's shard or chunk,
    /// and the owner for prefix and query.
    pub fn holders(&self, world: usize) -> Vec<usize> {
        let mut holders = vec![self.owner; self.total_rows()];
        if self.decodes_alone(world) {
            return holders;
        }
        if !self.method.prefill.is_whole()
            && let Some(shards) = shards(self, world)
        {
            for (rank, rows) in shards.iter().enumerate() {
                rows.iter().for_each(|&row| holders[row as usize] = rank);
            }
            return holders;
        }
        for (rows, chunk) in self.chunk_rows().into_iter().zip(&self.chunks) {
            rows.for_each(|row| holders[row as usize] = chunk.rank);
        }
        holders
    }
}
