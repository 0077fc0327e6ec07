//! InfoFlow: a row's score is the attention that the query's rows pay it in a few late layers, softmax over everything they
//! see, mean over heads, Euclidean norm (or sum) over the query's rows, mean over the layers. Exact where every row is
//! selected.

use tributary_protocol::Score;

use super::{Candidates, Need, Selector};
use crate::attention::Probe;
use crate::error::Result;

/// One probe, one answer.
pub struct InfoFlow {
    /// What the probe measures.
    pub probe: Probe,
}

/// The probe that the parameters describe.
pub(super) fn probe(parameters: &tributary_protocol::InfoFlow) -> Probe {
    let (from, to) = parameters.layers;
    Probe { layers: from..to, over_context: false, norm: parameters.score == Score::Norm }
}

impl Selector for InfoFlow {
    fn next(&mut self, _: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match evidence {
            [] => Need::Probe(self.probe.clone()),
            scores => Need::Scores(scores.to_vec()),
        })
    }
}
