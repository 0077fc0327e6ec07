//! The interface of selectors: the trait that each implements, and the data it takes and gives.

use tributary_protocol::Plan;

use super::top::top_rows;
use crate::error::Result;

/// The evidence that a selector asks for, or its answer in the end.
#[derive(Debug, Clone, PartialEq)]
pub enum Need {
    /// The attention of the query, as the method's descriptor says: one number a context row.
    Probe,
    /// The attention of some context rows, once they are recomputed at their global positions: Σ of their weights times
    /// their attention, mean over layers and heads.
    Pass {
        /// The rows, as numbered in the plan, ascending.
        rows: Vec<u32>,
        /// One weight a row.
        weights: Vec<f32>,
    },
    /// What rows attend to as if every other chunk stood before their own, and the order of chunks that follows (trace), given one
    /// score a context row: one number a context row, 0 where a free probe is left out. The candidates are then those of the new order.
    Trace(Vec<f32>),
    /// How far rows drift from what is cached of them, as the method's descriptor says: one number a context row, 0 for those that
    /// may not be selected and those that did not go on to the last layer that is measured.
    Drift,
    /// How much what the query takes from each row differs between the cache and a full prefill, which is computed too: one number a
    /// context row.
    Oracle,
    /// The answer: one score a context row; the budget's best are taken.
    Scores(Vec<f32>),
    /// The answer: these rows.
    Rows(Vec<u32>),
    /// The answer: these rows, by one score a context row.
    Chosen {
        /// The rows, as numbered in the plan, ascending.
        rows: Vec<u32>,
        /// The scores.
        scores: Vec<f32>,
    },
}

/// The rows that may be selected, and how many.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidates {
    /// Number of the first context row.
    pub first_row: u32,
    /// Number of context rows.
    pub context: usize,
    /// The rows that may be selected, ascending.
    pub rows: Vec<u32>,
    /// Each chunk's first row and length, chunks in the order of the layout; those that may not be selected left out.
    pub chunks: Vec<(u32, usize)>,
    /// How many to select at most.
    pub budget: usize,
    /// How many to measure in a pass at most, if the method makes one.
    pub measured: usize,
    /// Rows of the query.
    pub query: usize,
    /// The readings of the plan's auxiliary models, one number a context row each.
    pub auxiliary: Vec<Vec<f32>>,
}

impl Candidates {
    /// Candidates of a plan whose chunks stand in `order`: all but the first chunk's rows, which are exact already, unless
    /// the plan includes them.
    pub fn new(plan: &Plan, order: &[u32]) -> Self {
        assert_eq!(order.len(), plan.chunks.len(), "chunks in the order {order:?}");
        let first_row = plan.prefix_tokens() as u32;
        let (chunks, rows) = (plan.candidates(order), plan.candidate_rows(order));
        Self {
            first_row,
            context: plan.context_rows(),
            rows,
            chunks,
            budget: plan.budget,
            measured: plan.measured_rows(),
            query: plan.query_tokens(),
            auxiliary: Vec::new(),
        }
    }

    /// The candidates of the same plan with chunks in another order.
    pub fn moved(self, plan: &Plan, order: &[u32]) -> Self {
        Self { auxiliary: self.auxiliary, ..Self::new(plan, order) }
    }

    /// Checks that there are at most `most` rows, all of them candidates, in ascending order, so that none is there twice.
    ///
    /// # Panics
    /// If that is not so: only a bug can do that.
    pub fn check(&self, rows: &[u32], most: usize) {
        assert!(rows.len() <= most, "{} selected rows, at most {most}", rows.len());
        for pair in rows.windows(2) {
            assert!(pair[0] < pair[1], "selected row {} stands before row {}", pair[0], pair[1]);
        }
        for row in rows {
            assert!(self.rows.binary_search(row).is_ok(), "row {row} may not be selected");
        }
    }

    /// The best `count` candidates by `scores` (one a context row), ascending.
    pub fn top(&self, scores: &[f32], count: usize) -> Vec<u32> {
        assert_eq!(scores.len(), self.context, "scores of the context's rows");
        top_rows(&self.rows, |row| scores[(row - self.first_row) as usize], count)
    }
}

/// One way to choose rows.
pub trait Selector {
    /// The next thing needed, given the evidence that the last [`Need`] brought (one number a context row; empty at
    /// first). Called until it answers with scores or rows. A pure function of what it is given: every rank calls it.
    ///
    /// # Errors
    /// None so far; a selector that reads files may have some.
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Result<Need>;
}
