//! A³: a row's score is Σ over heads and query rows of softmax(Q_query K_docᵀ/√D) in the first layer, softmax over the context.
//! Exact where every row is selected.

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// One probe of one layer, whose evidence is the answer.
pub struct A3;

impl Selector for A3 {
    fn next(&mut self, _: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match evidence {
            [] => Need::Probe,
            scores => Need::Scores(scores.to_vec()),
        })
    }
}
