//! Statistics of samples: median, its confidence interval, percentiles where there are enough
//! samples; and the divergence of two distributions.

/// Summary of samples, in their unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// Bounds of a 95 % confidence interval of the median; the range below [`INTERVAL_SAMPLES`].
    pub ci95: (f64, f64),
    /// Mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// 95th percentile; absent below [`P95_SAMPLES`].
    pub p95: Option<f64>,
    /// 99th percentile; absent below [`P99_SAMPLES`].
    pub p99: Option<f64>,
}

/// Samples that a 95th percentile needs.
pub const P95_SAMPLES: usize = 30;

/// Samples that a 95 % interval of the median needs: the range of fewer holds it with less.
pub const INTERVAL_SAMPLES: usize = 6;

/// Samples that a 99th percentile needs.
pub const P99_SAMPLES: usize = 100;

/// Summary of samples; none without samples.
pub fn summary(samples: &[f64]) -> Option<Summary> {
    if samples.is_empty() {
        return None;
    }
    let sorted = sorted(samples);
    let count = sorted.len();
    Some(Summary {
        count,
        median: middle(&sorted),
        ci95: interval(&sorted),
        mean: sorted.iter().sum::<f64>() / count as f64,
        min: sorted[0],
        max: sorted[count - 1],
        p95: (count >= P95_SAMPLES).then(|| percentile(&sorted, 0.95)),
        p99: (count >= P99_SAMPLES).then(|| percentile(&sorted, 0.99)),
    })
}

/// KL(p ‖ q) of the softmaxes of two logit vectors, in nats: in f64, over all entries.
///
/// # Panics
/// If there are more of one than of the other: only a bug can do that.
pub fn kl_nats(p: &[f32], q: &[f32]) -> f64 {
    assert_eq!(p.len(), q.len(), "logits of one vocabulary");
    let log_softmax = |logits: &[f32]| -> Vec<f64> {
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let shifted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) - largest).collect();
        let log_total = shifted.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        shifted.into_iter().map(|logit| logit - log_total).collect()
    };
    let (p, q) = (log_softmax(p), log_softmax(q));
    // Terms without probability in p add nothing, for any probability in q.
    let terms = p.iter().zip(&q).filter(|(p, _)| p.exp() > 0.0).map(|(p, q)| p.exp() * (p - q));
    // Below 0 it comes only by rounding.
    terms.sum::<f64>().max(0.0)
}

/// The middle one, or the mean of the two in the middle; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { middle(&sorted(values)) }
}

/// Bounds of an interval that holds the median of the sampled distribution with a probability of at
/// least 95 %, for any distribution: the k-th sample from below and from above, with the largest k
/// for which 1 − 2·P(B ≤ k − 1) ≥ 0.95, B binomial with n trials of 1/2. Five samples and fewer
/// reach less even with the least and the largest, which are given then (five: 93.75 %). There is
/// at least one value.
fn interval(sorted: &[f64]) -> (f64, f64) {
    let count = sorted.len();
    let from = interval_rank(count) - 1;
    (sorted[from], sorted[count - 1 - from])
}

/// The largest k of [`interval`], at least 1.
fn interval_rank(count: usize) -> usize {
    let mut log_choose = 0.0; // ln C(count, below)
    let log_all = count as f64 * std::f64::consts::LN_2;
    let mut tail = 0.0;
    let mut rank = 0;
    for below in 0..count.div_ceil(2) {
        tail += f64::exp(log_choose - log_all);
        if 2.0 * tail > 0.05 {
            break;
        }
        rank = below + 1;
        log_choose += ((count - below) as f64 / (below + 1) as f64).ln();
    }
    rank.max(1)
}

/// The least of some values, in ascending order, that so large a share of them does not exceed
/// (nearest rank). There is at least one.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Bounds of an interval that holds that percentile of the sampled distribution with a probability
/// of at least 95 %, for any distribution of independent samples: the i-th and j-th sample, with
/// P(B < i) and P(B >= j) of at most 2.5 % each, B binomial with n trials of `share`. A bound is
/// absent where no sample reaches it. `share` is above 0 and below 1.
pub fn percentile_interval(sorted: &[f64], share: f64) -> (Option<f64>, Option<f64>) {
    let count = sorted.len();
    let (mut log_choose, mut below) = (0.0, 0.0); // ln C(count, k), P(B < k)
    let (mut low, mut high) = (None, None);
    for k in 0..=count {
        // P(B < k) is `below`: the k-th sample, from 1 on, is a lower bound while it is small.
        if below <= 0.025 && k > 0 {
            low = Some(sorted[k - 1]);
        }
        if 1.0 - below <= 0.025 && k > 0 && high.is_none() {
            high = Some(sorted[k - 1]);
        }
        below += f64::exp(log_choose + k as f64 * share.ln() + (count - k) as f64 * (1.0 - share).ln());
        log_choose += ((count - k) as f64 / (k + 1) as f64).ln();
    }
    (low, high)
}

/// The values in ascending order.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_known_distributions() {
        let logs = |p: [f32; 2]| p.map(f32::ln);
        let expected = 0.5 * (0.5f64 / 0.9).ln() + 0.5 * (0.5f64 / 0.1).ln();
        assert!((kl_nats(&logs([0.5, 0.5]), &logs([0.9, 0.1])) - expected).abs() < 1e-6);
        assert!(kl_nats(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0]) < 1e-12, "a constant changes nothing");
        assert!(kl_nats(&[0.0, -2000.0], &[0.0, -3000.0]) < 1e-12, "what is beyond f64 adds nothing");
        let many: Vec<f32> = (0..150_000).map(|index| (index % 7) as f32).collect();
        assert!(kl_nats(&many, &many) < 1e-9);
    }

    #[test]
    fn medians_of_even_and_odd_counts() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!((median(&[7.0]) - 7.0).abs() < 1e-12);
    }

    #[test]
    fn interval_ranks_are_those_of_the_binomial_tables() {
        // Known: n = 6 .. 8 → 1, 9 .. 11 → 2, 12 .. 14 → 3, 15 .. 16 → 4, 17 → 5, 20 → 6, 25 → 8,
        // 30 → 10, 50 → 18, 100 → 40.
        let table = [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (17, 5), (20, 6), (25, 8)];
        for (count, rank) in table.into_iter().chain([(30, 10), (50, 18), (100, 40)]) {
            assert_eq!(interval_rank(count), rank, "{count} samples");
        }
        // Far beyond where 2^-n is 0: about n/2 − 0.98·√n.
        assert_eq!(interval_rank(10_000), 4902);
    }

    #[test]
    fn intervals_are_samples() {
        let of = |values: &[f64]| summary(values).expect("there are samples").ci95;
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        assert_eq!(of(&values), (2.0, 9.0));
        assert_eq!(of(&[3.0, 1.0, 2.0]), (1.0, 3.0));
    }

    #[test]
    fn percentiles_need_samples() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        let at = |count: u32| summary(&values(count)).map(|summary| (summary.p95, summary.p99));
        assert_eq!(at(29), Some((None, None)));
        assert_eq!(at(30), Some((Some(29.0), None)));
        assert_eq!(at(100), Some((Some(95.0), Some(99.0))));
        assert_eq!(summary(&[]), None);
    }

    #[test]
    fn a_summary_of_known_samples() {
        let summary = summary(&[4.0, 8.0, 5.0, 6.0, 2.0]).expect("there are samples");
        assert_eq!((summary.count, summary.median, summary.mean), (5, 5.0, 5.0));
        assert_eq!((summary.min, summary.max, summary.ci95), (2.0, 8.0, (2.0, 8.0)));
    }

    #[test]
    fn an_interval_of_a_percentile_is_the_binomials() {
        let samples: Vec<f64> = (1..=1000).map(f64::from).collect();
        // R: qbinom(0.025, 1000, 0.99) is 983, and qbinom(0.975, 1000, 0.99) 996.
        assert_eq!(percentile_interval(&samples, 0.99), (Some(983.0), Some(997.0)));
        // Of 100 samples the largest is below the 99th percentile with a probability of 0.37.
        let (low, high) = percentile_interval(&samples[..100], 0.99);
        assert_eq!((low, high), (Some(97.0), None));
        assert_eq!(percentile_interval(&[], 0.99), (None, None));
        // The median's is the one above: P(B <= 0) of 6 trials of 1/2 is 1.6 %.
        assert_eq!(percentile_interval(&samples[..6], 0.5), (Some(1.0), Some(6.0)));
    }
}
