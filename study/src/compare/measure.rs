//! Results of one method's runs, compared with those of full prefill.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::{Summary, median, summary};
use tributary_coordinator::report::{EvictedRow, PhaseRow, ResolvedSettings};
use tributary_engine::Answered;

use crate::schema::Accuracy;

/// One method on one request.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Measured {
    /// The method and its options, as asked for.
    pub method: String,
    /// Every setting that shaped the result.
    pub settings: ResolvedSettings,
    /// Whether it equals full prefill but for rounding.
    pub exact: bool,
    /// Time to first token of every counted run, in the order of the runs.
    pub ttft_ms: Vec<f64>,
    /// Their median.
    pub median_ttft_ms: f64,
    /// The least of them.
    pub min_ttft_ms: f64,
    /// The largest of them.
    pub max_ttft_ms: f64,
    /// Median over the median of full prefill.
    pub ttft_ratio_to_full: f64,
    /// Paper clock of every counted run: without query rows and first token, estimated.
    pub paper_clock_ms: Vec<f64>,
    /// Payload bytes of tensors received until the first token, all ranks together.
    pub received_bytes: u64,
    /// Rows that were selected.
    pub selected: usize,
    /// Difference of the first token's logits from full prefill's.
    #[serde(flatten)]
    pub accuracy: Accuracy,
    /// The generated text.
    pub answer: String,
    /// Whether it begins with the expected answer, word for word; absent where none is known.
    pub right: Option<bool>,
    /// Phases of the run with the median time.
    pub phases: Vec<PhaseRow>,
    /// Median time of a token after the first, without an eviction; absent where there is one token
    /// only.
    pub median_token_ms: Option<f64>,
    /// Rows of the prompt that decoding does not keep, in the run with the median time; absent
    /// where it keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted: Option<EvictedRow>,
    /// Median time that an eviction takes between the first token and the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_evict_ms: Option<f64>,
}

impl Measured {
    /// Results of `runs`, compared with the runs of full prefill. Both have at least one run.
    pub fn new(method: &str, runs: &[Answered], full: &[Answered], expected: Option<&str>) -> Self {
        let ttft_ms: Vec<f64> = runs.iter().map(|run| run.report.ttft_ms).collect();
        let Summary { median: median_ttft_ms, min: min_ttft_ms, max: max_ttft_ms, .. } =
            summary(&ttft_ms).expect("there is a run");
        let full_ms: Vec<f64> = full.iter().map(|run| run.report.ttft_ms).collect();
        let nearest = |run: &&Answered| (run.report.ttft_ms - median_ttft_ms).abs();
        let typical = runs.iter().min_by(|a, b| nearest(a).total_cmp(&nearest(b))).expect("there is a run");
        let (logits, reference) = (logits(typical), logits(&full[0]));
        let report = &typical.report;
        Self {
            method: method.to_owned(),
            settings: report.settings.clone(),
            exact: report.exact,
            median_ttft_ms,
            min_ttft_ms,
            max_ttft_ms,
            ttft_ratio_to_full: median_ttft_ms / median(&full_ms),
            paper_clock_ms: runs.iter().map(|run| run.report.paper_clock_ms).collect(),
            ttft_ms,
            received_bytes: report.ranks.iter().map(|rank| rank.tensor_bytes_received).sum(),
            selected: report.tokens.selected,
            accuracy: Accuracy::between(logits, reference),
            answer: report.answer.clone(),
            right: expected.map(|expected| begins_with(&report.answer, expected)),
            phases: report.phases.clone(),
            median_token_ms: median_of(runs, |run| run.report.token_ms()),
            evicted: report.evicted.clone(),
            median_evict_ms: median_of(runs, |run| run.report.evicted.as_ref().map(|evicted| evicted.ms)),
        }
    }
}

/// The median over the runs; nothing where none has it.
fn median_of(runs: &[Answered], of: impl Fn(&Answered) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = runs.iter().filter_map(of).collect();
    (!values.is_empty()).then(|| median(&values))
}

fn logits(run: &Answered) -> &[f32] {
    run.answer.outcome.logits.as_deref().unwrap_or_default()
}

/// Whether the words of `answer` begin with those of `expected`.
fn begins_with(answer: &str, expected: &str) -> bool {
    let mut words = answer.split_whitespace();
    expected.split_whitespace().all(|word| words.next() == Some(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_word_by_word() {
        assert!(begins_with("8 7 7 . and more", "8 7 7"));
        assert!(!begins_with("8 7 71", "8 7 7"));
        assert!(!begins_with("8 7", "8 7 7"));
    }
}
