//! ProphetKV: a row's score is the attention that the query's rows pay it, normalised over the context, mean over all
//! layers, heads and query rows. Exact where every row is selected.

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// One probe of all layers.
pub struct ProphetKv;

impl Selector for ProphetKv {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match evidence {
            [] => Need::Probe,
            sums => Need::Scores(sums.iter().map(|sum| sum / candidates.query as f32).collect()),
        })
    }
}
