//! Methods beside each other on the same requests of all tasks: shares of full prefill's score and
//! differences of all pairs, by a paired bootstrap.

use schemars::JsonSchema;
use serde::Serialize;

use crate::answers::{Answers, score};
use crate::design::Arm;
use crate::random::Random;
use crate::statistics::{DRAWS, Mean, holm};
use crate::suite::Cell;

/// The most methods whose pairs are compared.
const MOST_ARMS: usize = 12;

/// The share outside an interval.
const OUTSIDE: f64 = 0.05;

/// All requests together. Requests are drawn anew with the answers of all methods to them.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Pooled {
    /// Number of requests.
    pub requests: usize,
    /// Each method's score over full prefill's, with its 95 % interval; empty where full prefill's
    /// is 0.
    pub shares: Vec<PooledShare>,
    /// Each pair of methods other than full prefill.
    pub differences: Vec<PooledDifference>,
}

/// A method's share of full prefill's score.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PooledShare {
    /// The method and its options.
    pub method: String,
    /// The share of the context that it recomputes; absent where it has none.
    pub ratio: Option<f64>,
    /// Its mean score over full prefill's.
    pub share: Mean,
}

/// The difference of two methods.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PooledDifference {
    /// The method and its options.
    pub method: String,
    /// The share of the context that it recomputes; absent where it has none.
    pub ratio: Option<f64>,
    /// The method that it is compared with.
    pub rival: String,
    /// That one's share.
    pub rival_ratio: Option<f64>,
    /// Mean score of the method less the rival's. The interval is Holm's: of m pairs the one with
    /// the least p has the level 1 - 0.05 / m, the next 1 - 0.05 / (m - 1), and so on.
    pub difference: Mean,
    /// Twice the share of draws on the other side of 0.
    pub p: f64,
    /// The same, adjusted after Holm for all pairs.
    pub holm_p: f64,
}

/// Mean scores of a method in every draw, in the order of draws.
struct Drawn {
    mean: f64,
    means: Vec<f64>,
}

/// The comparison, the first method being full prefill. Absent of one method alone, of no requests,
/// and of more methods than [`MOST_ARMS`].
pub fn pooled(cells: &[(Cell, usize)], seed: u64, arms: &[Arm], answers: &Answers) -> Option<Pooled> {
    let scores = |arm: &Arm| -> Vec<f64> { answers.of_arm(cells, arm).into_iter().map(score).collect() };
    let scores: Vec<Vec<f64>> = arms.iter().map(scores).collect();
    let arms: Vec<_> = arms.iter().map(|arm| (arm.method.clone(), arm.ratio)).collect();
    pooled_scores(&arms, &scores, seed)
}

/// The comparison of methods with their ratios, the first being full prefill, by the scores of
/// each: one a request, in the same order.
pub(crate) fn pooled_scores(arms: &[(String, Option<f64>)], scores: &[Vec<f64>], seed: u64) -> Option<Pooled> {
    let requests = scores.first().map_or(0, Vec::len);
    if requests == 0 || !(2..=MOST_ARMS).contains(&arms.len()) {
        return None;
    }
    let drawn = drawn(scores, seed);
    let of = |index: usize| arms[index].clone();
    let full = &drawn[0];
    let shares = if full.mean > 0.0 { (1..arms.len()).collect() } else { Vec::new() };
    let share = |index: usize| {
        let (method, ratio) = of(index);
        // A draw in which full prefill has nothing says nothing.
        let pairs = drawn[index].means.iter().zip(&full.means).filter(|(_, full)| **full > 0.0);
        let shares = pairs.map(|(own, full)| own / full).collect();
        PooledShare { method, ratio, share: interval(drawn[index].mean / full.mean, shares, OUTSIDE) }
    };
    let pairs: Vec<(usize, usize)> = (1..arms.len()).flat_map(|one| (1..one).map(move |other| (one, other))).collect();
    let difference = |(&(one, other), Compared { difference, p, holm_p }): (&(usize, usize), Compared)| {
        let ((method, ratio), (rival, rival_ratio)) = (of(one), of(other));
        PooledDifference { method, ratio, rival, rival_ratio, difference, p, holm_p }
    };
    Some(Pooled {
        requests,
        shares: shares.into_iter().map(share).collect(),
        differences: pairs.iter().zip(compared(&drawn, &pairs)).map(difference).collect(),
    })
}

/// The difference of two methods, with Holm's interval, its p, and p after Holm.
pub(crate) struct Compared {
    pub difference: Mean,
    pub p: f64,
    pub holm_p: f64,
}

/// Each method but the first less the first one, by their scores of the same requests.
pub(crate) fn less_the_first(scores: &[Vec<f64>], seed: u64) -> Vec<Compared> {
    let pairs: Vec<(usize, usize)> = (1..scores.len()).map(|one| (one, 0)).collect();
    compared(&drawn(scores, seed), &pairs)
}

/// The first method of each pair less the second one.
fn compared(drawn: &[Drawn], pairs: &[(usize, usize)]) -> Vec<Compared> {
    let less = |&(one, other): &(usize, usize)| -> Vec<f64> {
        drawn[one].means.iter().zip(&drawn[other].means).map(|(one, other)| one - other).collect()
    };
    let ps: Vec<f64> = pairs.iter().map(|pair| two_sided(&less(pair))).collect();
    let adjusted = holm(&ps);
    let mut order: Vec<usize> = (0..ps.len()).collect();
    order.sort_by(|&one, &other| ps[one].total_cmp(&ps[other]));
    let place = |pair: usize| order.iter().position(|&other| other == pair).unwrap_or_default();
    let of_pair = |(index, pair): (usize, &(usize, usize))| {
        let outside = OUTSIDE / (ps.len() - place(index)) as f64;
        let mean = drawn[pair.0].mean - drawn[pair.1].mean;
        Compared { difference: interval(mean, less(pair), outside), p: ps[index], holm_p: adjusted[index] }
    };
    pairs.iter().enumerate().map(of_pair).collect()
}

/// Mean scores of all methods in the same draws of requests.
fn drawn(scores: &[Vec<f64>], seed: u64) -> Vec<Drawn> {
    let requests = scores[0].len();
    let mean = |own: &Vec<f64>| own.iter().sum::<f64>() / requests as f64;
    let mut all: Vec<Drawn> =
        scores.iter().map(|own| Drawn { mean: mean(own), means: Vec::with_capacity(DRAWS) }).collect();
    let mut random = Random::of(&format!("pooled bootstrap {seed}"));
    for _ in 0..DRAWS {
        let chosen: Vec<usize> = (0..requests).map(|_| random.below(requests)).collect();
        for (drawn, own) in all.iter_mut().zip(scores) {
            drawn.means.push(chosen.iter().map(|&index| own[index]).sum::<f64>() / requests as f64);
        }
    }
    all
}

/// Twice the share of draws on the other side of 0, at most 1 and never 0.
fn two_sided(draws: &[f64]) -> f64 {
    let count = |is_there: fn(&f64) -> bool| draws.iter().filter(|draw| is_there(draw)).count() + 1;
    let fewer = count(|draw| *draw <= 0.0).min(count(|draw| *draw >= 0.0));
    (2.0 * fewer as f64 / (draws.len() + 1) as f64).min(1.0)
}

/// A value with the interval of its draws.
fn interval(mean: f64, mut draws: Vec<f64>, outside: f64) -> Mean {
    draws.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let last = draws.len().saturating_sub(1);
        draws.get((share * last as f64).round() as usize).copied().unwrap_or(mean)
    };
    Mean { mean, low: at(outside / 2.0), high: at(1.0 - outside / 2.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{Answer, Outcome};
    use crate::kit;

    /// Answers of methods, by their scores.
    fn pooled_of(scores: &[(&str, Vec<f64>)]) -> Option<Pooled> {
        let arms: Vec<Arm> = scores.iter().map(|(name, _)| kit::arm(name, None)).collect();
        let count = scores[0].1.len();
        let evaluation = kit::evaluation(arms.clone(), count);
        let mut answers = Answers::default();
        for (arm, (_, own)) in arms.iter().zip(scores) {
            for (request, score) in evaluation.requests.iter().zip(own) {
                let answer = Answer::new(request, arm, Outcome::Answered(Box::new(kit::reply())));
                answers.add(Answer { score: *score, ..answer });
            }
        }
        pooled(&evaluation.cells, 1, &arms, &answers)
    }

    fn every(count: usize, of: usize) -> Vec<f64> {
        (0..count).map(|index| f64::from(u8::from(index % of == 0))).collect()
    }

    #[test]
    fn pairs_are_compared_on_the_same_requests() {
        let better: Vec<f64> = every(200, 2);
        let worse: Vec<f64> =
            better.iter().enumerate().map(|(at, score)| if at % 8 == 0 { 0.0 } else { *score }).collect();
        let found =
            pooled_of(&[("full", vec![1.0; 200]), ("none", worse.clone()), ("infoflow", better), ("same", worse)])
                .unwrap();
        assert_eq!((found.requests, found.shares.len(), found.differences.len()), (200, 3, 3));
        let share = &found.shares[1];
        assert!(share.method == "infoflow" && (share.share.mean - 0.5).abs() < 1e-12, "{share:?}");
        assert!((share.share.low - 0.43).abs() < 0.02 && (share.share.high - 0.57).abs() < 0.02, "{share:?}");
        let of = |method: &str, rival: &str| {
            found.differences.iter().find(|pair| pair.method == method && pair.rival == rival).unwrap()
        };
        let clear = of("infoflow", "none");
        assert!((clear.difference.mean - 0.125).abs() < 1e-12 && clear.difference.low > 0.05, "{clear:?}");
        assert!(clear.holm_p < 0.01, "{clear:?}");
        let equal = of("same", "none");
        assert_eq!((equal.difference.mean, equal.difference.low, equal.p), (0.0, 0.0, 1.0));
    }

    #[test]
    fn intervals_of_several_pairs_are_wider() {
        let (one, other) = (every(100, 2), every(100, 3));
        let alone = pooled_of(&[("full", vec![1.0; 100]), ("a", one.clone()), ("b", other.clone())]).unwrap();
        let among = pooled_of(&[
            ("full", vec![1.0; 100]),
            ("a", one),
            ("b", other),
            ("c", every(100, 5)),
            ("d", every(100, 7)),
        ])
        .unwrap();
        let of = |found: &Pooled| {
            let pair = found.differences.iter().find(|pair| pair.method == "b" && pair.rival == "a").unwrap();
            (pair.difference.high - pair.difference.low, pair.holm_p / pair.p)
        };
        let (narrow, wide) = (of(&alone), of(&among));
        assert!(wide.0 > narrow.0 && narrow.1 == 1.0 && wide.1 >= 1.0, "{narrow:?} {wide:?}");
    }

    #[test]
    fn one_method_alone_is_not_compared() {
        assert_eq!(pooled_of(&[("full", vec![1.0; 4])]), None);
        let nothing = pooled_of(&[("full", vec![0.0; 4]), ("none", vec![0.0; 4])]).unwrap();
        assert!(nothing.shares.is_empty() && nothing.differences.is_empty());
    }
}
