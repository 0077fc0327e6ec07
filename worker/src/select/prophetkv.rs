//! ProphetKV: a row's score is the attention that the query's rows pay it, normalised over the context, mean over all
//! layers, heads and query rows. Exact where every row is selected.

use std::ops::Range;

use super::{Candidates, Need, Selector};
use crate::attention::Probe;
use crate::error::Result;

/// One probe of all layers.
pub struct ProphetKv {
    /// All layers of the model.
    pub layers: Range<usize>,
}

/// The probe of all layers. It gives the sum over the query's rows; [`mean`] makes the mean of it.
pub(super) fn probe(layers: Range<usize>) -> Probe {
    Probe { layers, over_context: true, norm: false }
}

/// The mean over the query's rows.
pub(super) fn mean(sums: &[f32], candidates: &Candidates) -> Vec<f32> {
    sums.iter().map(|sum| sum / candidates.query as f32).collect()
}

impl Selector for ProphetKv {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match evidence {
            [] => Need::Probe(probe(self.layers.clone())),
            sums => Need::Scores(mean(sums, candidates)),
        })
    }
}
