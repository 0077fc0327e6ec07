//! CacheBlend: the rows that drift most from what is cached of them, once they know the whole context. *Approximate*; exact at ratio 1.

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// The budget's best by drift, as it is measured.
pub struct CacheBlend;

impl Selector for CacheBlend {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match (candidates.rows.is_empty(), evidence.is_empty()) {
            (true, _) => Need::Rows(Vec::new()),
            (false, true) => Need::Drift,
            (false, false) => Need::Scores(evidence.to_vec()),
        })
    }
}
