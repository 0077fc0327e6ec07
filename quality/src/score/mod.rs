//! Scores of answers, from 0 to 1, as LongBench (Bai et al. 2023, arXiv:2308.14508) and RULER
//! (Hsieh et al. 2024, arXiv:2404.06654) define them, and the evaluations that their authors
//! publish: where a formula there has a quirk, the score has it too, so that numbers compare.

mod code;
mod rouge;
mod words;

pub use code::code_similarity;
pub use rouge::rouge_l;
pub use words::{begins_with, classification, count, match_all, match_part, qa_f1, retrieval};

/// Metric of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// F1 of the words of answer and reference.
    QaF1,
    /// ROUGE-L, its F1.
    RougeL,
    /// Whether the answer names the class.
    Classification,
    /// Share of the named numbers that are the paragraph's.
    Retrieval,
    /// The share of the numbers named that are the reference.
    Count,
    /// Likeness of the first line of code.
    CodeSimilarity,
    /// Share of the references that the answer contains.
    MatchAll,
    /// Whether the answer contains a reference.
    MatchPart,
    /// Whether the answer's words begin with the reference's.
    BeginsWith,
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 9] = [
        Metric::QaF1,
        Metric::RougeL,
        Metric::Classification,
        Metric::Retrieval,
        Metric::Count,
        Metric::CodeSimilarity,
        Metric::MatchAll,
        Metric::MatchPart,
        Metric::BeginsWith,
    ];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Metric::QaF1 => "qa_f1",
            Metric::RougeL => "rouge_l",
            Metric::Classification => "classification",
            Metric::Retrieval => "retrieval",
            Metric::Count => "count",
            Metric::CodeSimilarity => "code_similarity",
            Metric::MatchAll => "match_all",
            Metric::MatchPart => "match_part",
            Metric::BeginsWith => "begins_with",
        }
    }

    /// The metric of a name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// The score of an answer against the reference that suits it best; against all of them for
    /// metrics that need it. `classes` are all that a classification knows.
    pub fn score(self, answer: &str, references: &[String], classes: &[String]) -> f64 {
        let against = |reference: &String| match self {
            Metric::MatchAll => match_all(answer, references),
            Metric::MatchPart => match_part(answer, reference),
            Metric::BeginsWith => begins_with(answer, reference),
            Metric::QaF1 => qa_f1(answer, reference),
            Metric::RougeL => rouge_l(answer, reference),
            Metric::Classification => classification(answer, reference, classes),
            Metric::Retrieval => retrieval(answer, reference),
            Metric::Count => count(answer, reference),
            Metric::CodeSimilarity => code_similarity(answer, reference),
        };
        references.iter().map(against).fold(0.0, f64::max)
    }
}
