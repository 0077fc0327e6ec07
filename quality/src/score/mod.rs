//! Scores of answers, from 0 to 1, as LongBench defines them (Bai et al. 2023, arXiv:2308.14508, and the evaluation that its authors
//! publish): where a formula there has a quirk, the score has it too, so that numbers compare.

mod code;
mod rouge;
mod words;

pub use code::code_similarity;
pub use rouge::rouge_l;
pub use words::{classification, count, qa_f1, retrieval};

/// How an answer is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// F1 of the words of answer and reference.
    QaF1,
    /// ROUGE-L, its F1.
    RougeL,
    /// Whether the answer names the class.
    Classification,
    /// The share of the numbers named that are the paragraph's.
    Retrieval,
    /// The share of the numbers named that are the reference.
    Count,
    /// Likeness of the first line of code.
    CodeSimilarity,
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 6] = [
        Metric::QaF1,
        Metric::RougeL,
        Metric::Classification,
        Metric::Retrieval,
        Metric::Count,
        Metric::CodeSimilarity,
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
        }
    }

    /// The metric of a name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// The score of an answer against the reference that suits it best. `classes` are all that a classification knows.
    pub fn score(self, answer: &str, references: &[String], classes: &[String]) -> f64 {
        let against = |reference: &String| match self {
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
