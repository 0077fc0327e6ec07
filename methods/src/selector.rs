//! The interface of selectors: the trait that each implements, and the data it takes and gives.

use crate::rows::top_rows;

/// The evidence that a selector asks for, or its answer in the end.
#[derive(Debug, Clone, PartialEq)]
pub enum Need {
    /// The attention of the query, as the method's [`Evidence`](crate::Evidence) says: one number a context row.
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
    /// How far rows drift from what is cached of them, as the method's [`Drift`](crate::Drift) says: one number a context row, 0 for those that
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
    /// Seed of what is drawn at random.
    pub seed: u64,
    /// The readings of the plan's auxiliary models, one number a context row each.
    pub auxiliary: Vec<Vec<f32>>,
}

impl Candidates {
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
    /// The next thing needed, given the evidence that the last [`Need`] brought (one number a
    /// context row; empty at first). Called until it answers with scores or rows. A pure function of
    /// what it is given: every rank calls it.
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Need;
}

/// A function that keeps nothing between its calls is a selector too.
impl<F: FnMut(&Candidates, &[f32]) -> Need> Selector for F {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Need {
        self(candidates, evidence)
    }
}

/// Asks the query once; the evidence is the scores.
pub fn probe_once(_: &Candidates, evidence: &[f32]) -> Need {
    match evidence {
        [] => Need::Probe,
        scores => Need::Scores(scores.to_vec()),
    }
}

/// Measures drift once, unless no row may be selected; the evidence is the scores.
pub fn drift_once(candidates: &Candidates, evidence: &[f32]) -> Need {
    match (candidates.rows.is_empty(), evidence) {
        (true, _) => Need::Rows(Vec::new()),
        (false, []) => Need::Drift,
        (false, scores) => Need::Scores(scores.to_vec()),
    }
}

/// Selects no row.
pub fn nothing(_: &Candidates, _: &[f32]) -> Need {
    Need::Rows(Vec::new())
}
