//! EPIC's LegoLink: the first rows of every chunk but the first, which are where a chunk's own attention sink grew. Exact
//! where a chunk's length does not exceed the rows it gets.

use super::{Candidates, Need, Selector};
use crate::error::Result;

/// Selects by place alone.
pub struct Epic {
    /// Rows a chunk; the budget divided evenly where absent. What short chunks leave unspent stays unspent.
    pub per_chunk: Option<usize>,
}

impl Selector for Epic {
    fn next(&mut self, candidates: &Candidates, _: &[f32]) -> Result<Need> {
        let per_chunk = self.per_chunk.unwrap_or(candidates.budget / candidates.chunks.len().max(1));
        let head = |&(first, length): &(u32, usize)| first..first + per_chunk.min(length) as u32;
        let mut rows: Vec<u32> = candidates.chunks.iter().flat_map(head).collect();
        rows.sort_unstable();
        Ok(Need::Rows(rows))
    }
}
