//! The suite `ruler`: the 13 tasks of RULER (Hsieh et al. 2024, arXiv:2404.06654, section 3 and the
//! configuration that its authors publish), made here from a seed. Prompts, numbers of needles,
//! hops and words, answer lengths and metrics are theirs; the draws are not. Essays and questions
//! are those available, and a report names them.

mod chains;
mod coded;
mod common;
mod draft;
mod needles;
mod questions;
mod suite;
#[cfg(test)]
mod tests;

use crate::score::Metric;

pub use self::draft::Draft;
pub use self::needles::{Form, Haystack, Needles, Place};
pub use self::suite::open;

/// A task of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Its name.
    pub name: &'static str,
    /// Question of the task.
    kind: Kind,
    /// Tokens of the answer, at most.
    answer_tokens: usize,
}

/// Question of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Values that are hidden in a haystack.
    Needles(Needles),
    /// All variables of a chain of assignments, among noise.
    Chain,
    /// The ten most frequent words of a list.
    CommonWords,
    /// The three most frequent coded words of a text.
    CodedWords,
    /// A question about one paragraph among others.
    OneParagraph,
    /// A question that needs several passages among others.
    SeveralPassages,
}

/// Every task, in the order of the paper's tables.
pub const TASKS: [Task; 13] = [
    hidden("niah_single_1", Needles { haystack: Haystack::Noise, ..ONE }),
    hidden("niah_single_2", ONE),
    hidden("niah_single_3", Needles { value: Form::Uuid, ..ONE }),
    hidden("niah_multikey_1", Needles { keys: 4, ..ONE }),
    hidden("niah_multikey_2", Needles { haystack: Haystack::Needles, ..ONE }),
    hidden("niah_multikey_3", Needles { haystack: Haystack::Needles, key: Form::Uuid, value: Form::Uuid, ..ONE }),
    hidden("niah_multivalue", Needles { values: 4, ..ONE }),
    hidden("niah_multiquery", Needles { keys: 4, queries: 4, ..ONE }),
    Task { name: "vt", kind: Kind::Chain, answer_tokens: 30 },
    Task { name: "cwe", kind: Kind::CommonWords, answer_tokens: 120 },
    Task { name: "fwe", kind: Kind::CodedWords, answer_tokens: 50 },
    Task { name: "qa_1", kind: Kind::OneParagraph, answer_tokens: 32 },
    Task { name: "qa_2", kind: Kind::SeveralPassages, answer_tokens: 32 },
];

/// One number after one word, in essays.
const ONE: Needles =
    Needles { haystack: Haystack::Essay, key: Form::Word, value: Form::Number, keys: 1, values: 1, queries: 1 };

const fn hidden(name: &'static str, needles: Needles) -> Task {
    Task { name, kind: Kind::Needles(needles), answer_tokens: 128 }
}

impl Task {
    /// The task of a name.
    pub fn find(name: &str) -> Option<&'static Task> {
        TASKS.iter().find(|task| task.name == name)
    }

    /// A share of the references for all but questions, which have several right answers.
    fn metric(&self) -> Metric {
        match self.kind {
            Kind::OneParagraph | Kind::SeveralPassages => Metric::MatchPart,
            Kind::Needles(_) | Kind::Chain | Kind::CommonWords | Kind::CodedWords => Metric::MatchAll,
        }
    }
}
