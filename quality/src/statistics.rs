//! Intervals of means of scores, and tests whether two methods differ on the same requests.

use schemars::JsonSchema;
use serde::Serialize;

use crate::random::Random;

/// Samples that are drawn from the requests.
pub const DRAWS: usize = 10_000;

/// The share of draws outside the interval, at either end.
const TAIL: f64 = 0.025;

/// A mean and its 95 % interval. Of scores that are all 0 or 1 it is Wilson's (1927), of
/// differences of such scores Newcombe's for pairs (1998, method 10): both are wider than a point
/// where all agree. Of anything else it holds 95 % of the means of resampled requests (the
/// percentile bootstrap, Efron 1979).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The least of the interval.
    pub low: f64,
    /// The most.
    pub high: f64,
}

/// A share of requests and its 95 % interval (Wilson's score interval, 1927), which is wider than a
/// point where all of few agree.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Share {
    /// The share, from 0 to 1.
    pub share: f64,
    /// The least of the interval.
    pub low: f64,
    /// The most.
    pub high: f64,
}

/// The 97.5th percentile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// Share of `some` in `all`; none where `all` is 0.
pub fn share(some: usize, all: usize) -> Option<Share> {
    if all == 0 {
        return None;
    }
    let (count, share) = (all as f64, some as f64 / all as f64);
    let scale = 1.0 + Z * Z / count;
    let middle = (share + Z * Z / (2.0 * count)) / scale;
    let half = Z / scale * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
    Some(Share { share, low: (middle - half).clamp(0.0, share), high: (middle + half).clamp(share, 1.0) })
}

/// Mean of scores, one a request; none without scores. The draws follow from the seed.
pub fn mean(scores: &[f64], seed: u64) -> Option<Mean> {
    mean_of(scores, seed, DRAWS)
}

/// The same with `draws` draws.
pub(crate) fn mean_of(scores: &[f64], seed: u64, draws: usize) -> Option<Mean> {
    if scores.is_empty() {
        return None;
    }
    let count = scores.len();
    let of = |sum: f64| sum / count as f64;
    let mut random = Random::of(&format!("bootstrap {seed}"));
    let mut draw = || of((0..count).map(|_| scores[random.below(count)]).sum());
    let mut means: Vec<f64> = (0..draws).map(|_| draw()).collect();
    means.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| means[(share * (draws - 1) as f64).round() as usize];
    Some(Mean { mean: of(scores.iter().sum()), low: at(TAIL), high: at(1.0 - TAIL) })
}

/// Whether scores are all 0 or 1: then their mean is a share.
fn are_binary(scores: &[f64]) -> bool {
    scores.iter().all(|score| *score == 0.0 || *score == 1.0)
}

/// Mean of scores from 0 to 1, one a request; none without scores. Where all are 0 or 1 its
/// interval is Wilson's: resampling ten right answers would always give ten right answers.
pub fn score(scores: &[f64], seed: u64) -> Option<Mean> {
    if !are_binary(scores) {
        return mean(scores, seed);
    }
    let right = scores.iter().filter(|score| **score == 1.0).count();
    share(right, scores.len()).map(|Share { share, low, high }| Mean { mean: share, low, high })
}

/// The difference of two shares of the same requests with Newcombe's interval for pairs (1998,
/// method 10, with his correction of the correlation); none without requests.
fn paired_shares(ours: &[f64], theirs: &[f64]) -> Option<Mean> {
    let count = |own: f64, other: f64| ours.iter().zip(theirs).filter(|pair| *pair == (&own, &other)).count();
    let [both, ours_alone, theirs_alone, neither] =
        [count(1.0, 1.0), count(1.0, 0.0), count(0.0, 1.0), count(0.0, 0.0)];
    let all = ours.len();
    let (one, other) = (share(both + ours_alone, all)?, share(both + theirs_alone, all)?);
    let [both, ours_alone, theirs_alone, neither] = [both, ours_alone, theirs_alone, neither].map(|count| count as f64);
    let margins = (both + ours_alone) * (theirs_alone + neither) * (both + theirs_alone) * (ours_alone + neither);
    let product = both * neither - ours_alone * theirs_alone;
    let corrected = if product > 0.0 { (product - all as f64 / 2.0).max(0.0) } else { product };
    let correlation = if margins > 0.0 { corrected / margins.sqrt() } else { 0.0 };
    let half = |first: f64, second: f64| {
        (first * first - 2.0 * correlation * first * second + second * second).max(0.0).sqrt()
    };
    let mean = one.share - other.share;
    Some(Mean {
        mean,
        low: mean - half(one.share - one.low, other.high - other.share),
        high: mean + half(one.high - one.share, other.share - other.low),
    })
}

/// Mean difference of two methods' scores on the same requests; none without requests. Where all
/// scores are 0 or 1 its interval is Newcombe's.
///
/// # Panics
/// If there are more scores of one than of the other: only a bug can do that.
pub fn difference(ours: &[f64], theirs: &[f64], seed: u64) -> Option<Mean> {
    assert_eq!(ours.len(), theirs.len(), "scores of the same requests");
    if are_binary(ours) && are_binary(theirs) {
        return paired_shares(ours, theirs);
    }
    let differences: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
    mean(&differences, seed)
}

/// McNemar's exact test (1947; two-sided, binomial): probability that two equally good methods
/// differ at least as much, where `ours_alone` requests are right by one of them alone and
/// `theirs_alone` by the other alone.
pub fn mcnemar(ours_alone: usize, theirs_alone: usize) -> f64 {
    let (all, fewer) = (ours_alone + theirs_alone, ours_alone.min(theirs_alone));
    // In logarithms: 2^-n is beyond the range of a number.
    let mut ln_choose = 0.0;
    let mut tail = 0.0;
    for k in 0..=fewer {
        if k > 0 {
            ln_choose += ((all - k + 1) as f64 / k as f64).ln();
        }
        tail += (ln_choose - all as f64 * std::f64::consts::LN_2).exp();
    }
    (2.0 * tail).min(1.0)
}

/// Holm's adjustment (1979) of p-values that are looked at together: the least times their number,
/// the next times one fewer, and so on, none below the one before it nor above 1. In the order
/// given.
pub fn holm(ps: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ps.len()).collect();
    order.sort_by(|&one, &other| ps[one].total_cmp(&ps[other]));
    let (mut adjusted, mut least) = (vec![1.0; ps.len()], 0.0f64);
    for (place, index) in order.into_iter().enumerate() {
        least = least.max((ps.len() - place) as f64 * ps[index]).min(1.0);
        adjusted[index] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_as_wide_as_the_scores_are_apart() {
        assert_eq!(mean(&[], 1), None);
        let same = mean(&[0.5; 20], 1).unwrap();
        assert_eq!((same.low, same.mean, same.high), (0.5, 0.5, 0.5));
        let half: Vec<f64> = (0..100).map(|index| f64::from(index % 2)).collect();
        let found = mean(&half, 1).unwrap();
        // 1.96 standard errors of 100 coins are 0.098.
        assert!((found.low - 0.402).abs() < 0.02 && (found.high - 0.598).abs() < 0.02, "{found:?}");
        assert_eq!(mean(&half, 1), mean(&half, 1), "the seed fixes it");
    }

    #[test]
    fn shares_have_wilsons_interval() {
        assert_eq!(share(0, 0), None);
        let close = |found: Share, low: f64, high: f64| {
            assert!((found.low - low).abs() < 1e-4 && (found.high - high).abs() < 1e-4, "{found:?}");
        };
        // Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
        close(share(81, 263).unwrap(), 0.2553, 0.3662);
        close(share(15, 148).unwrap(), 0.0624, 0.1605);
        close(share(0, 20).unwrap(), 0.0, 0.1611);
        close(share(1, 29).unwrap(), 0.0061, 0.1718);
        let all = share(10, 10).unwrap();
        assert!(
            all.share >= 1.0 && all.high >= 1.0 && (0.7..0.73).contains(&all.low),
            "ten of ten are not sure: {all:?}"
        );
    }

    #[test]
    fn scores_of_right_and_wrong_have_wilsons_interval_and_others_the_bootstraps() {
        let all_right = score(&[1.0; 10], 1).unwrap();
        assert!(
            all_right.mean == 1.0 && all_right.high == 1.0 && (all_right.low - 0.7225).abs() < 1e-3,
            "{all_right:?}"
        );
        let none_right = score(&[0.0; 20], 1).unwrap();
        assert!(none_right.low == 0.0 && (none_right.high - 0.1611).abs() < 1e-4, "{none_right:?}");
        let partly = [1.0, 0.5, 1.0, 0.0, 0.25];
        assert_eq!(score(&partly, 1), mean(&partly, 1));
        assert_eq!(score(&[], 1), None);
    }

    #[test]
    fn differences_of_right_and_wrong_are_not_sure_where_all_agree() {
        let same = difference(&[1.0; 10], &[1.0; 10], 1).unwrap();
        assert!(same.mean == 0.0 && same.low < -0.25 && same.high > 0.25, "ten of ten by both: {same:?}");
        let pairs = |counts: [usize; 4]| -> (Vec<f64>, Vec<f64>) {
            let kinds = [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)];
            counts.into_iter().zip(kinds).flat_map(|(count, kind)| std::iter::repeat_n(kind, count)).unzip()
        };
        let of = |counts| {
            let (ours, theirs) = pairs(counts);
            difference(&ours, &theirs, 1).unwrap()
        };
        // Newcombe (1998), examples of table III: 36, 12, 2, 0.
        let found = of([36, 12, 2, 0]);
        assert!((found.mean - 0.2).abs() < 1e-12, "{found:?}");
        assert!((found.low - 0.0569).abs() < 1e-3 && (found.high - 0.3404).abs() < 1e-3, "{found:?}");
        // Turned around it is the same interval from the other side.
        let turned = of([36, 2, 12, 0]);
        assert!((turned.low + found.high).abs() < 1e-12 && (turned.high + found.low).abs() < 1e-12, "{turned:?}");
        assert!(of([0, 10, 0, 0]).high <= 1.0 + 1e-12 && of([0, 0, 10, 0]).low >= -1.0 - 1e-12);
    }

    #[test]
    fn holms_adjustment_is_the_textbooks() {
        let close = |found: &[f64], wanted: &[f64]| {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(one, other)| (one - other).abs() < 1e-12)
        };
        // As `p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")` of R.
        assert!(
            close(&holm(&[0.01, 0.04, 0.03, 0.005]), &[0.03, 0.06, 0.06, 0.02]),
            "{:?}",
            holm(&[0.01, 0.04, 0.03, 0.005])
        );
        assert!(close(&holm(&[0.5, 0.9]), &[1.0, 1.0]) && close(&holm(&[0.02]), &[0.02]) && holm(&[]).is_empty());
    }

    #[test]
    fn the_same_requests_are_compared_with_each_other() {
        let theirs: Vec<f64> = (0..50).map(f64::from).collect();
        let ours: Vec<f64> = theirs.iter().map(|score| score + 0.25).collect();
        let found = difference(&ours, &theirs, 3).unwrap();
        assert!((found.low - 0.25).abs() < 1e-9 && (found.high - 0.25).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn mcnemar_is_the_binomial_test() {
        assert!((mcnemar(0, 5) - 0.0625).abs() < 1e-12, "2 / 32");
        assert!((mcnemar(1, 9) - 0.021_484_375).abs() < 1e-12, "2 * 11 / 1024");
        assert_eq!((mcnemar(0, 0), mcnemar(4, 4)), (1.0, 1.0));
        assert!(mcnemar(900, 1100) > 0.0 && mcnemar(900, 1100) < 1e-4);
    }
}
