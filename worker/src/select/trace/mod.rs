//! Trace (ours): relay that follows chains of rows whatever the order of their chunks, and puts chunks in the order in which they
//! depend on each other. Exact where every row is selected and no chunk moves.
//!
//! s = ProphetKV's score, normalised over the context. Free probes measure what the best rows attend to as if every other chunk stood
//! before their own, and what those depend on, round by round ([`Chains`] has the formulas). score = s + a, where a is what the
//! measured rows attend to by their relevance, among rows of chunks that do not stand behind their own in the new order, normalised.

mod chains;
mod ordering;
#[cfg(test)]
mod tests;

pub use chains::{Chains, Read};

use super::selector::{Candidates, Need, Selector};
use super::top::normalised;
use crate::error::Result;

/// A probe, then free probes.
#[derive(Default)]
pub struct Traced {
    scores: Option<Vec<f32>>,
}

impl Selector for Traced {
    fn next(&mut self, _candidates: &Candidates, evidence: &[f32]) -> Result<Need> {
        if evidence.is_empty() {
            return Ok(Need::Probe);
        }
        let Some(scores) = &self.scores else {
            let scores = normalised(evidence);
            self.scores = Some(scores.clone());
            return Ok(Need::Trace(scores));
        };
        assert_eq!(evidence.len(), scores.len(), "numbers of the free probes and of the first one");
        Ok(Need::Scores(scores.iter().zip(normalised(evidence)).map(|(s, a)| s + a).collect()))
    }
}
