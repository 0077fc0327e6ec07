//! Relay (ours): two hops. The query names a third of the budget (ProphetKV's score); those rows are recomputed once, and their
//! own attention is the second half of the score: it finds the rows that the named ones depend on. Exact where every row is
//! selected.
//!
//! s¹ = ProphetKV's score, normalised over the context; S¹ = its top ⌊n/3⌋; a_t = Σ_{i∈S¹} (s¹_i / Σ s¹) · mean_{l,h} A[i,t],
//! normalised; score = s¹ + a.

use super::selector::{Candidates, Need, Selector};
use super::top::normalised;
use crate::error::Result;

/// A probe, then a pass over the rows it named.
#[derive(Default)]
pub struct Relay {
    first: Option<Vec<f32>>,
}

impl Selector for Relay {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Result<Need> {
        if evidence.is_empty() {
            return Ok(Need::Probe);
        }
        let Some(first) = &self.first else {
            let first = normalised(evidence);
            let rows = candidates.top(&first, candidates.measured);
            if rows.is_empty() {
                return Ok(Need::Scores(first));
            }
            let score = |row: &u32| first[(row - candidates.first_row) as usize];
            let total: f32 = rows.iter().map(score).sum();
            let weights = rows.iter().map(|row| score(row) / total.max(f32::MIN_POSITIVE)).collect();
            self.first = Some(first);
            return Ok(Need::Pass { rows, weights });
        };
        assert_eq!(evidence.len(), first.len(), "numbers of the second hop and of the first");
        let second = normalised(evidence);
        Ok(Need::Scores(first.iter().zip(second).map(|(s, a)| s + a).collect()))
    }
}
