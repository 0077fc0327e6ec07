//! Drawing a token from logits, and how likely it was.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tributary_protocol::{DrawnToken, Logprobs, Sampling};

/// Draws tokens, reproducibly from the seed.
pub struct Sampler {
    sampling: Sampling,
    /// Tokens whose log-probabilities come with each that is drawn; absent where nobody asks.
    logprobs: Option<u32>,
    random: ChaCha8Rng,
}

impl Sampler {
    /// A sampler at the start of its sequence of draws. With each token it tells log-probabilities, if asked for: the token's own,
    /// and those of the `logprobs` likeliest.
    pub fn new(sampling: Sampling, logprobs: Option<u32>) -> Self {
        Self { sampling, logprobs, random: ChaCha8Rng::seed_from_u64(sampling.seed) }
    }

    /// A token, and how clear the choice was.
    pub fn draw(&mut self, logits: &[f32]) -> DrawnToken {
        let token = self.token(logits);
        let logprobs = self.logprobs.map(|count| Box::new(log_probabilities(logits, token, count as usize)));
        DrawnToken { token, margin: margin(logits), logprobs }
    }

    /// A token id. Temperature 0 takes the largest logit, ties the lower id; else softmax(logits / temperature) of the `top_k`
    /// best, cut to the smallest set of best tokens whose share of these reaches `top_p` (nucleus sampling, Holtzman et al. 2020).
    fn token(&mut self, logits: &[f32]) -> u32 {
        if self.sampling.temperature <= 0.0 {
            return argmax(logits);
        }
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        if self.sampling.top_k > 0 {
            ids.truncate(self.sampling.top_k as usize);
        }
        let largest = f64::from(logits[ids[0] as usize]);
        let weight =
            |id: &u32| ((f64::from(logits[*id as usize]) - largest) / f64::from(self.sampling.temperature)).exp();
        let weights: Vec<f64> = ids.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let (mut kept, mut mass) = (0, 0.0);
        while kept < ids.len() && (kept == 0 || mass < f64::from(self.sampling.top_p) * total) {
            mass += weights[kept];
            kept += 1;
        }
        let mut left = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * mass;
        for (id, weight) in ids.iter().zip(&weights).take(kept) {
            left -= weight;
            if left < 0.0 {
                return *id;
            }
        }
        ids[kept - 1]
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let better = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (0..logits.len()).fold(0, better) as u32
}

/// Log-softmax of the logits, of the drawn token and of so many of the best.
fn log_probabilities(logits: &[f32], drawn: u32, count: usize) -> Logprobs {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    let log_sum = f64::from(largest) + sum.ln();
    let of = |id: u32| (f64::from(logits[id as usize]) - log_sum) as f32;
    let mut best: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
    if count > 0 && count < best.len() {
        best.select_nth_unstable_by(count - 1, order);
    }
    best.truncate(count);
    best.sort_unstable_by(order);
    Logprobs { drawn: of(drawn), top: best.into_iter().map(|id| (id, of(id))).collect() }
}

/// The difference between the two largest logits over the larger one's absolute value; infinite where there is one logit.
fn margin(logits: &[f32]) -> f32 {
    let order = |(first, second): (f32, f32), &logit: &f32| match logit > first {
        true => (logit, first),
        false => (first, second.max(logit)),
    };
    let (first, second) = logits.iter().fold((f32::NEG_INFINITY, f32::NEG_INFINITY), order);
    (first - second) / first.abs().max(f32::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32, top_p: f32) -> Sampler {
        Sampler::new(Sampling { temperature, top_p, top_k: 0, seed: 7 }, None)
    }

    #[test]
    fn greedy_takes_the_lower_id_of_a_tie() {
        assert_eq!(sampler(0.0, 1.0).draw(&[0.0, 3.0, 3.0, 1.0]), DrawnToken { token: 1, margin: 0.0, logprobs: None });
    }

    #[test]
    fn a_margin_is_relative_to_the_largest_logit() {
        assert_eq!(margin(&[1.0, -4.0, 2.0]), 0.5);
        assert_eq!(margin(&[-4.0, -2.0]), 1.0);
        assert_eq!(margin(&[3.0]), f32::INFINITY);
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_nucleus() {
        let logits = [0.6f32.ln(), 0.3f32.ln(), 0.1f32.ln()];
        let mut count = [0; 3];
        let mut all = sampler(1.0, 1.0);
        (0..20_000).for_each(|_| count[all.draw(&logits).token as usize] += 1);
        for (count, expected) in count.into_iter().zip([0.6, 0.3, 0.1]) {
            assert!((f64::from(count) / 20_000.0 - expected).abs() < 0.02, "{count} of 20000 for {expected}");
        }
        let mut nucleus = sampler(1.0, 0.7);
        assert!((0..2000).all(|_| nucleus.draw(&logits).token < 2));
    }

    #[test]
    fn the_best_k_are_drawn_from_and_the_nucleus_is_of_these() {
        let logits = [0.1f32.ln(), 0.3f32.ln(), 0.6f32.ln(), f32::MIN];
        let counts = |top_k, top_p| {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, top_p, top_k, seed: 7 }, None);
            let mut counts = [0; 4];
            (0..6000).for_each(|_| counts[sampler.draw(&logits).token as usize] += 1);
            counts
        };
        assert_eq!(counts(1, 1.0), [0, 0, 6000, 0]);
        let two = counts(2, 1.0);
        assert!(two[0] == 0 && (two[2] as f64 / 6000.0 - 2.0 / 3.0).abs() < 0.03, "{two:?}");
        // 0.6 of 0.9 is more than 0.65, though 0.6 of all is not.
        assert_eq!(counts(2, 0.65), [0, 0, 6000, 0]);
        assert_eq!(counts(9, 1.0), counts(0, 1.0), "more than there are");
    }

    #[test]
    fn log_probabilities_are_of_the_logits_as_they_are() {
        let logits = [0.1f32.ln() + 3.0, 0.6f32.ln() + 3.0, 0.15f32.ln() + 3.0, 0.15f32.ln() + 3.0];
        for (temperature, count) in [(0.0, 0), (0.0, 3), (2.0, 3), (2.0, 9)] {
            let mut sampler = Sampler::new(Sampling { temperature, top_p: 0.5, top_k: 1, seed: 7 }, Some(count));
            let logprobs = sampler.draw(&logits).logprobs.expect("they were asked for");
            let expected = [(1, 0.6f32), (2, 0.15), (3, 0.15), (0, 0.1)];
            assert_eq!(logprobs.top.len(), expected.len().min(count as usize));
            for ((id, found), (wanted, probability)) in logprobs.top.iter().zip(expected) {
                assert!(*id == wanted && (found - probability.ln()).abs() < 1e-5, "{:?}", logprobs.top);
            }
            assert!((logprobs.drawn - 0.6f32.ln()).abs() < 1e-5, "{}", logprobs.drawn);
        }
    }
}
