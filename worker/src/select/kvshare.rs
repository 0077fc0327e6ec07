//! KVShare: a row's score is Σ over context rows n of A[n,t] · ‖V_t − cached V_t‖₁ in the second layer, behind a first one in which all
//! candidates have seen the whole context; A is the mean over heads. Exact at ratio 1.

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// The budget's best by weighted drift, as it is measured.
pub struct KvShare;

impl Selector for KvShare {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Result<Need> {
        Ok(match (candidates.rows.is_empty(), evidence.is_empty()) {
            (true, _) => Need::Rows(Vec::new()),
            (false, true) => Need::Drift,
            (false, false) => Need::Scores(evidence.to_vec()),
        })
    }
}
