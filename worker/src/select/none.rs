//! Naive reuse: no row is recomputed. Exact for a single chunk.

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// Selects nothing.
pub struct Nothing;

impl Selector for Nothing {
    fn next(&mut self, _: &Candidates, _: &[f32]) -> Result<Need> {
        Ok(Need::Rows(Vec::new()))
    }
}
