//! EPIC's LegoLink: the first rows of every chunk but the first, which are where a chunk's own attention sink grew. Exact
//! where a chunk's length does not exceed the rows it gets. What short chunks leave unspent stays unspent.

use tributary_protocol::leading;

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// Selects by place alone.
pub struct Epic {
    /// Rows a chunk; the budget divided evenly where absent.
    pub per_chunk: Option<usize>,
}

impl Selector for Epic {
    fn next(&mut self, candidates: &Candidates, _: &[f32]) -> Result<Need> {
        Ok(Need::Rows(leading(&candidates.chunks, candidates.budget, self.per_chunk)))
    }
}
