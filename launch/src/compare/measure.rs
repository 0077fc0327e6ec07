//! What the runs of one method came to, beside those of full prefill.

use serde::Serialize;

use crate::session::Answered;

/// One method on one request.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The method and its options, as asked for.
    pub method: String,
    /// Every setting that shaped the result.
    pub settings: serde_json::Value,
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
    /// Largest absolute difference of a first-token logit from full prefill's.
    pub max_logit_difference: f64,
    /// Kullback-Leibler divergence of the first token's distribution from full prefill's, in nats.
    pub kl_nats: f64,
    /// Whether the likeliest first token is full prefill's.
    pub top1_agrees: bool,
    /// The generated text.
    pub answer: String,
    /// Whether it begins with the expected answer, word for word; absent where none is known.
    pub right: Option<bool>,
    /// Phases of the run with the median time.
    pub phases: serde_json::Value,
}

impl Measured {
    /// What `runs` came to, beside the runs of full prefill. Both have at least one run.
    pub fn new(method: &str, runs: &[Answered], full: &[Answered], expected: Option<&str>) -> Self {
        let ttft_ms: Vec<f64> = runs.iter().map(|run| run.report.ttft_ms).collect();
        let median_ttft_ms = median(&ttft_ms);
        let full_ms: Vec<f64> = full.iter().map(|run| run.report.ttft_ms).collect();
        let nearest = |run: &&Answered| (run.report.ttft_ms - median_ttft_ms).abs();
        let typical = runs.iter().min_by(|a, b| nearest(a).total_cmp(&nearest(b))).expect("there is a run");
        let (logits, reference) = (logits(typical), logits(&full[0]));
        let report = &typical.report;
        Self {
            method: method.to_owned(),
            settings: serde_json::to_value(&report.settings).unwrap_or_default(),
            exact: report.exact,
            median_ttft_ms,
            min_ttft_ms: ttft_ms.iter().copied().fold(f64::INFINITY, f64::min),
            max_ttft_ms: ttft_ms.iter().copied().fold(0.0, f64::max),
            ttft_ratio_to_full: median_ttft_ms / median(&full_ms),
            paper_clock_ms: runs.iter().map(|run| run.report.paper_clock_ms).collect(),
            ttft_ms,
            received_bytes: report.ranks.iter().map(|rank| rank.tensor_bytes_received).sum(),
            selected: report.tokens.selected,
            max_logit_difference: max_difference(logits, reference),
            kl_nats: kl(reference, logits),
            top1_agrees: argmax(logits) == argmax(reference),
            answer: report.answer.clone(),
            right: expected.map(|expected| begins_with(&report.answer, expected)),
            phases: serde_json::to_value(&report.phases).unwrap_or_default(),
        }
    }
}

fn logits(run: &Answered) -> &[f32] {
    run.answer.outcome.logits.as_deref().unwrap_or_default()
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn max_difference(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

/// KL(p ‖ q) of the softmaxes of two logit vectors, in nats.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let log_softmax = |logits: &[f32]| -> Vec<f64> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let shifted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - largest)).collect();
        let log_total = shifted.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        shifted.into_iter().map(|logit| logit - log_total).collect()
    };
    let (p, q) = (log_softmax(p), log_softmax(q));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0)
}

fn argmax(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

/// Whether the words of `answer` begin with those of `expected`.
fn begins_with(answer: &str, expected: &str) -> bool {
    let mut words = answer.split_whitespace();
    expected.split_whitespace().all(|word| words.next() == Some(word))
}

/// Orders of the methods, drawn anew for every round, reproducibly.
pub struct Shuffle {
    state: u64,
}

impl Shuffle {
    /// A sequence of orders from a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The numbers below `count` in a new order (Fisher-Yates with a 64-bit linear congruential generator).
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(last, ((self.state >> 33) % (last as u64 + 1)) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_even_and_odd_counts() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
    }

    #[test]
    fn divergence_of_known_distributions() {
        let logs = |p: [f32; 2]| p.map(f32::ln);
        let expected = 0.5 * (0.5f64 / 0.9).ln() + 0.5 * (0.5f64 / 0.1).ln();
        assert!((kl(&logs([0.5, 0.5]), &logs([0.9, 0.1])) - expected).abs() < 1e-6);
        assert!(kl(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0]) < 1e-12);
    }

    #[test]
    fn answers_are_compared_word_by_word() {
        assert!(begins_with("8 7 7 . and more", "8 7 7"));
        assert!(!begins_with("8 7 71", "8 7 7"));
        assert!(!begins_with("8 7", "8 7 7"));
    }

    #[test]
    fn every_order_holds_every_method_once() {
        let mut shuffle = Shuffle::new(3);
        let orders: Vec<Vec<usize>> = (0..50).map(|_| shuffle.order(5)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        let firsts: std::collections::HashSet<usize> = orders.iter().map(|order| order[0]).collect();
        assert_eq!(firsts.len(), 5);
    }
}
