//! Ideal: a row's score is ‖Φ[t]·V[t] − Φ'[t]·V'[t]‖₂, mean over layers, where Φ is the mean attention of the query's rows over heads and
//! rows: of a full prefill, and (') of the cache as it is. Exact at ratio 1.

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// The budget's best by the oracle's word.
pub struct Ideal;

impl Selector for Ideal {
    fn next(&mut self, _: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match evidence {
            [] => Need::Oracle,
            scores => Need::Scores(scores.to_vec()),
        })
    }
}
