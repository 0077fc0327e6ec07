//! The requests on which methods fall behind full prefill most.

use crate::answers::{Answer, Answers};
use crate::evaluation::Evaluation;

/// The most that are shown, and the most of one method.
const MOST: usize = 24;
const MOST_OF_METHOD: usize = 4;

/// The most letters of a text that are shown.
const LETTERS: usize = 240;

/// A request that a method answers worse than full prefill.
#[derive(Debug, Clone, PartialEq)]
pub struct Worst<'a> {
    /// The method with its ratio.
    pub method: String,
    /// Its answer.
    pub own: &'a Answer,
    /// Full prefill's.
    pub full: &'a Answer,
}

/// Requests by how far a method is behind, furthest first; of several as far, those asked first. No method has more than a few.
pub fn worst<'a>(evaluation: &Evaluation, answers: &'a Answers) -> Vec<Worst<'a>> {
    let Some((reference, others)) = evaluation.arms.split_first() else { return Vec::new() };
    let mut found: Vec<Worst<'a>> = Vec::new();
    for arm in others {
        let pair = |request: &crate::evaluation::Request| {
            let own = answers.get(&request.cell, request.number, arm)?;
            let full = answers.get(&request.cell, request.number, reference)?;
            (own.score < full.score).then(|| Worst { method: arm.label(), own, full })
        };
        let mut behind: Vec<Worst<'a>> = evaluation.requests.iter().filter_map(pair).collect();
        behind.sort_by(|a, b| b.behind().total_cmp(&a.behind()));
        behind.truncate(MOST_OF_METHOD);
        found.extend(behind);
    }
    found.sort_by(|a, b| b.behind().total_cmp(&a.behind()));
    found.truncate(MOST);
    found
}

impl Worst<'_> {
    fn behind(&self) -> f64 {
        self.full.score - self.own.score
    }
}

/// The beginning of a text.
pub fn shown(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}
