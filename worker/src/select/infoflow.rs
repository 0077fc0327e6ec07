//! InfoFlow: a row's score is the attention that the query's rows pay it in a few late layers, softmax over everything they
//! see, mean over heads, Euclidean norm (or sum) over the query's rows, mean over the layers. Exact where every row is
//! selected.

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// One probe, whose evidence is the answer.
pub struct InfoFlow;

impl Selector for InfoFlow {
    fn next(&mut self, _: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match evidence {
            [] => Need::Probe,
            scores => Need::Scores(scores.to_vec()),
        })
    }
}
