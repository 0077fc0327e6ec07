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

/// The probe of all layers; sum instead of mean over the query's rows, which orders rows alike.
pub(super) fn probe(layers: Range<usize>) -> Probe {
    Probe {
        layers,
        over_context: true,
        norm: false,
    }
}

impl Selector for ProphetKv {
    fn next(&mut self, _: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match evidence {
            [] => Need::Probe(probe(self.layers.clone())),
            scores => Need::Scores(scores.to_vec()),
        })
    }
}
