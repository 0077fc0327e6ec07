//! The interface of selectors: the trait that each implements, and its inputs and outputs.

use crate::rows::top_rows;

/// Evidence that a selector asks for, or its final answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Need {
    /// The attention of the query, measured by the method's [`Evidence`](crate::Evidence): one
    /// number a context row. Where anchors stand for chunks, it is that of the row's chunk: the
    /// mean over its anchors.
    Probe,
    /// The attention of the query's rows, as the probe of the [anchors](crate::Anchors) left them,
    /// to all rows of these chunks, given by first row and length: one number a context row, 0 for
    /// rows of other chunks. It comes after [`Need::Probe`] only.
    Within(Vec<(u32, usize)>),
    /// The attention of some context rows after their recompute at their global positions: Σ of
    /// their weights times their attention, mean over layers and heads.
    Pass {
        /// The rows, as numbered in the plan, ascending.
        rows: Vec<u32>,
        /// One weight a row.
        weights: Vec<f32>,
    },
    /// The attention of rows as if every other chunk stood before their own, and the resulting
    /// order of chunks (trace), given one score a context row.
    /// One number a context row, 0 if no free probe runs. The candidates are then those of the new
    /// order.
    Trace(Vec<f32>),
    /// The drift of rows from the cache, measured by the method's [`Drift`](crate::Drift): one
    /// number a context row.
    /// It is 0 for rows that may not be selected and for those that did not go on to the last
    /// measured layer.
    Drift,
    /// The difference of each row's contribution to the query between the cache and a full prefill,
    /// which is computed too: one number a context row.
    Oracle,
    /// The answer: one score a context row; the highest up to the budget are selected.
    Scores(Vec<f32>),
    /// The answer: these rows.
    Rows(Vec<u32>),
    /// The answer: these rows, with one score a context row.
    Chosen {
        /// The rows, as numbered in the plan, ascending.
        rows: Vec<u32>,
        /// The scores.
        scores: Vec<f32>,
    },
}

/// The rows that may be selected, and their maximum number.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidates {
    /// Number of the first context row.
    pub first_row: u32,
    /// Number of context rows.
    pub context: usize,
    /// The rows that may be selected, ascending.
    pub rows: Vec<u32>,
    /// First row and length of each chunk, chunks in the order of the layout; chunks that may not
    /// be selected are left out.
    pub chunks: Vec<(u32, usize)>,
    /// Maximum number of rows to select.
    pub budget: usize,
    /// Maximum number of rows to measure in a pass, if the method makes one.
    pub measured: usize,
    /// Rows of the query.
    pub query: usize,
    /// Seed of random draws.
    pub seed: u64,
    /// The readings of the plan's auxiliary models, one number a context row each.
    pub auxiliary: Vec<Vec<f32>>,
    /// What is known of the context's text.
    pub text: TextHints,
}

/// What the text of a context tells a selector. Ranks have token ids alone, so that the coordinator
/// finds it. Rows are numbered as in the plan.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TextHints {
    /// The rows with which a sentence ends, ascending; empty where that is not known.
    pub sentence_ends: Vec<u32>,
    /// The rows in which a word ends that the query has too, ascending, each with the weight of
    /// that word. A word counts once a sentence.
    pub shared_words: Vec<(u32, f32)>,
    /// First rows of the chunks that the query's words name and whose openings tell what they are
    /// about, the best first.
    pub named: Vec<u32>,
}

impl Candidates {
    /// Checks that there are at most `most` rows, all candidates, in strictly ascending order.
    ///
    /// # Panics
    /// If a check fails: only a bug can cause that.
    pub fn check(&self, rows: &[u32], most: usize) {
        assert!(rows.len() <= most, "{} selected rows, at most {most}", rows.len());
        for pair in rows.windows(2) {
            assert!(pair[0] < pair[1], "selected row {} stands before row {}", pair[0], pair[1]);
        }
        for row in rows {
            assert!(self.rows.binary_search(row).is_ok(), "row {row} may not be selected");
        }
    }

    /// The readings of the plan's only auxiliary model, one number a context row.
    ///
    /// # Panics
    /// If there is another number of them: plans are checked for it.
    pub fn only_reading(&self) -> &[f32] {
        let [reading] = &self.auxiliary[..] else {
            panic!("readings of one auxiliary model are needed, not of {}", self.auxiliary.len());
        };
        assert_eq!(reading.len(), self.context, "readings of the context's rows");
        reading
    }

    /// The best `count` candidates by `scores` (one a context row), ascending.
    pub fn top(&self, scores: &[f32], count: usize) -> Vec<u32> {
        assert_eq!(scores.len(), self.context, "scores of the context's rows");
        top_rows(&self.rows, |row| scores[(row - self.first_row) as usize], count)
    }
}

/// A way to choose rows.
pub trait Selector {
    /// The next thing needed, given the evidence of the last [`Need`] (one number a context row;
    /// empty at first). Called until it answers with scores or rows. A pure function of its inputs:
    /// every rank calls it.
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Need;
}

/// A function without state between its calls is a selector too.
impl<F: FnMut(&Candidates, &[f32]) -> Need> Selector for F {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Need {
        self(candidates, evidence)
    }
}

/// Probes the query once; the evidence is the scores.
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
