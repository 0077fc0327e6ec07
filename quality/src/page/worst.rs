//! The requests on which methods lose most against full prefill.

use crate::answers::{Answer, Answers};
use crate::evaluation::Evaluation;

/// Approximate number of shown requests, and their maximum for one method; where many methods lose,
/// at least one of each is shown.
const ABOUT: usize = 24;
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

/// Requests on which methods lose against full prefill.
#[derive(Debug, Clone, PartialEq)]
pub struct Behind<'a> {
    /// Those that are shown: some of every method.
    pub shown: Vec<Worst<'a>>,
    /// Number of them for all methods together.
    pub all: usize,
    /// Number of methods that lose on at least one.
    pub methods: usize,
}

impl Behind<'_> {
    /// Their number, the number of those shown, and the place of the others.
    pub fn told(&self) -> String {
        let Self { shown, all, methods } = self;
        let (shown, all_are_here) = (shown.len(), shown.len() == *all);
        let of = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let head =
            format!("{} of {} have a lower score than full prefill's", of(*all, "answer"), of(*methods, "method"));
        match all_are_here {
            true => format!("{head}; all are shown here."),
            false => format!(
                "{head}. {shown} are shown here, the largest losses of each method; the other {} are in answers.csv, with the score and text of each.",
                all - shown
            ),
        }
    }
}

/// Requests by a method's loss, largest first; of equal ones, those asked first. Every method with
/// losses has some, and none more than a few.
pub fn worst<'a>(evaluation: &Evaluation, answers: &'a Answers) -> Behind<'a> {
    let Some((reference, others)) = evaluation.arms.split_first() else {
        return Behind { shown: Vec::new(), all: 0, methods: 0 };
    };
    let mut found: Vec<Vec<Worst<'a>>> = Vec::new();
    for arm in others {
        let pair = |request: &crate::evaluation::Request| {
            let own = answers.get(&request.cell, request.number, arm)?;
            let full = answers.get(&request.cell, request.number, reference)?;
            (own.score < full.score).then(|| Worst { method: arm.label(), own, full })
        };
        let mut behind: Vec<Worst<'a>> = evaluation.requests.iter().filter_map(pair).collect();
        behind.sort_by(|a, b| b.behind().total_cmp(&a.behind()));
        if !behind.is_empty() {
            found.push(behind);
        }
    }
    let (all, methods) = (found.iter().map(Vec::len).sum(), found.len());
    let most = (ABOUT / methods.max(1)).clamp(1, MOST_OF_METHOD);
    let mut shown: Vec<Worst<'a>> = found.into_iter().flat_map(|behind| behind.into_iter().take(most)).collect();
    shown.sort_by(|a, b| b.behind().total_cmp(&a.behind()));
    Behind { shown, all, methods }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::Outcome;
    use crate::kit;

    #[test]
    fn every_method_that_is_behind_stands_there_and_what_does_not_is_counted() {
        let arm = |number: usize| kit::arm(&format!("method{number}"), Some(0.15));
        let arms: Vec<_> = std::iter::once(kit::arm("full", None)).chain((0..20).map(arm)).collect();
        let mut evaluation = kit::evaluation(arms, 3);
        let mut answers = Answers::default();
        for request in &evaluation.requests {
            for arm in &evaluation.arms {
                let text = if arm.method == "full" { "1 2 3" } else { "nothing" };
                let reply = crate::answers::Reply { answer: text.to_owned(), ..kit::reply() };
                answers.add(Answer::new(request, arm, Outcome::Answered(Box::new(reply))));
            }
        }
        let found = worst(&evaluation, &answers);
        let methods: std::collections::BTreeSet<&str> = found.shown.iter().map(|own| own.method.as_str()).collect();
        assert_eq!((methods.len(), found.all, found.methods), (20, 60, 20), "{methods:?}");
        let told = found.told();
        assert!(told.starts_with("60 answers of 20 methods ") && told.contains("20 are shown here"), "{told}");
        assert!(told.contains("the other 40 are in answers.csv"), "{told}");
        evaluation.arms.truncate(2);
        let few = worst(&evaluation, &answers);
        assert_eq!(
            (few.shown.len(), few.told().as_str()),
            (3, "3 answers of 1 method have a lower score than full prefill's; all are shown here.")
        );
    }
}
