//! Drawing a token from logits.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tributary_protocol::{DrawnToken, Sampling};

/// Draws tokens, reproducibly from the seed.
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
}

impl Sampler {
    /// A sampler at the start of its sequence of draws.
    pub fn new(sampling: Sampling) -> Self {
        Self { sampling, random: ChaCha8Rng::seed_from_u64(sampling.seed) }
    }

    /// A token, and how clear the choice was.
    pub fn draw(&mut self, logits: &[f32]) -> DrawnToken {
        DrawnToken { token: self.token(logits), margin: margin(logits) }
    }

    /// A token id. Temperature 0 takes the largest logit, ties the lower id; else softmax(logits / temperature), cut to the
    /// smallest set of best tokens whose probabilities reach `top_p` (nucleus sampling, Holtzman et al. 2020).
    fn token(&mut self, logits: &[f32]) -> u32 {
        if self.sampling.temperature <= 0.0 {
            return argmax(logits);
        }
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
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
        Sampler::new(Sampling { temperature, top_p, seed: 7 })
    }

    #[test]
    fn greedy_takes_the_lower_id_of_a_tie() {
        assert_eq!(sampler(0.0, 1.0).draw(&[0.0, 3.0, 3.0, 1.0]), DrawnToken { token: 1, margin: 0.0 });
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
}
