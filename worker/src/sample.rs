//! Draws tokens from logits, with their log-probabilities.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tributary_protocol::{DrawnToken, Logprobs, Plan, Sampling, ScoredToken};

/// Draws tokens; the same seed gives the same draws.
pub struct Sampler {
    sampling: Sampling,
    /// Tokens that end the answer.
    ends: Vec<u32>,
    /// The prompt's tokens, if a penalty counts them.
    prompt: BTreeSet<u32>,
    /// The answer's tokens so far, with the count of each.
    counts: BTreeMap<u32, u32>,
    /// Number of drawn tokens.
    drawn: u32,
    /// Number of likeliest tokens whose log-probabilities come with each draw; absent if not
    /// requested.
    logprobs: Option<u32>,
    random: ChaCha8Rng,
}

impl Sampler {
    /// The sampler of a request at the start of its sequence of draws. If the plan asks for
    /// log-probabilities, each draw has the token's own and those of the likeliest.
    pub fn of(plan: &Plan) -> Self {
        let penalises_prompt = plan.sampling.repetition_penalty != 1.0;
        let prompt = if penalises_prompt { plan.all_ids().into_iter().collect() } else { BTreeSet::new() };
        let ends = plan.eos.clone();
        Self { ends, prompt, ..Self::new(plan.sampling.clone(), plan.returns.logprobs) }
    }

    /// A sampler that takes the likeliest token.
    pub fn greedy() -> Self {
        Self::new(Sampling::default(), None)
    }

    fn new(sampling: Sampling, logprobs: Option<u32>) -> Self {
        let random = ChaCha8Rng::seed_from_u64(sampling.seed);
        let (ends, prompt, counts) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        Self { sampling, ends, prompt, counts, drawn: 0, logprobs, random }
    }

    /// A token with the margin of the choice. Log-probabilities and margin are of the model's
    /// logits, before any adjustment.
    pub fn draw(&mut self, logits: &[f32]) -> DrawnToken {
        let token = match self.adjusts() {
            true => self.token(&self.adjusted(logits)),
            false => self.token(logits),
        };
        self.drawn += 1;
        *self.counts.entry(token).or_default() += 1;
        let logprobs = self.logprobs.map(|count| Box::new(log_probabilities(logits, token, count as usize)));
        DrawnToken { token, margin: margin(logits), logprobs }
    }

    /// Whether the next token is drawn from adjusted logits.
    fn adjusts(&self) -> bool {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, logit_bias, min_tokens, .. } =
            &self.sampling;
        *repetition_penalty != 1.0
            || *presence_penalty != 0.0
            || *frequency_penalty != 0.0
            || !logit_bias.is_empty()
            || self.drawn < *min_tokens
    }

    /// The logits with biases, without the tokens that would end the answer too early, and with
    /// penalties, in this order.
    fn adjusted(&self, logits: &[f32]) -> Vec<f32> {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, logit_bias, min_tokens, .. } =
            &self.sampling;
        let mut logits = logits.to_vec();
        for &(id, bias) in logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if self.drawn < *min_tokens {
            for &id in &self.ends {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = f32::MIN;
                }
            }
        }
        if *repetition_penalty != 1.0 {
            for id in self.prompt.iter().chain(self.counts.keys().filter(|id| !self.prompt.contains(id))) {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
                }
            }
        }
        for (&id, &count) in &self.counts {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= presence_penalty + frequency_penalty * count as f32;
            }
        }
        // A penalty of f32::MIN leaves the range.
        logits.iter_mut().for_each(|logit| *logit = logit.clamp(f32::MIN, f32::MAX));
        logits
    }

    /// A token id. Temperature 0 takes the largest logit, ties the lower id; otherwise it is drawn
    /// from softmax(logits / temperature) over the `top_k` best tokens that min-p leaves. These are
    /// cut to the smallest set of best tokens whose share reaches `top_p` (nucleus sampling,
    /// Holtzman et al. 2020).
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
        // The likeliest token's weight is 1, so that a weight is the share of its probability.
        let min_p = f64::from(self.sampling.min_p);
        let weights: Vec<f64> = ids.iter().map(weight).take_while(|&weight| weight >= min_p).collect();
        let weights = if weights.is_empty() { vec![1.0] } else { weights };
        let total: f64 = weights.iter().sum();
        let (mut kept, mut mass) = (0, 0.0);
        while kept < weights.len() && (kept == 0 || mass < f64::from(self.sampling.top_p) * total) {
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

/// The score of a given token under these logits, with the `count` likeliest tokens in its place.
pub fn score(logits: &[f32], token: u32, count: usize) -> ScoredToken {
    let Logprobs { drawn, top } = log_probabilities(logits, token, count);
    let own = logits[token as usize];
    let rank = 1 + logits.iter().filter(|&&logit| logit > own).count() as u32;
    ScoredToken { token, logprob: drawn, rank, top }
}

/// Log-softmax of the logits, for the drawn token and the `count` best.
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

/// The difference between the two largest logits over the larger one's absolute value; infinite
/// with a single logit.
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
        Sampler::new(Sampling { temperature, top_p, seed: 7, ..Sampling::default() }, None)
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
            let mut sampler =
                Sampler::new(Sampling { temperature: 1.0, top_p, top_k, seed: 7, ..Sampling::default() }, None);
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
    fn penalties_biases_and_early_ends_shape_what_is_drawn_and_not_what_is_told() {
        let logits = [2.0f32, 1.9, -1.0, -1.1];
        let drawn = |sampling: Sampling, prompt: &[u32], ends: &[u32], count: usize| {
            let mut sampler = Sampler::new(sampling, Some(0));
            (sampler.prompt, sampler.ends) = (prompt.iter().copied().collect(), ends.to_vec());
            let drawn: Vec<DrawnToken> = (0..count).map(|_| sampler.draw(&logits)).collect();
            let told = |token: &DrawnToken| token.logprobs.as_ref().expect("asked for").drawn;
            let plain = |token: &DrawnToken| log_probabilities(&logits, token.token, 0).drawn;
            assert!(drawn.iter().all(|token| told(token) == plain(token)), "of the logits as they are");
            drawn.into_iter().map(|token| token.token).collect::<Vec<u32>>()
        };
        let plain = Sampling::default;
        assert_eq!(drawn(plain(), &[], &[], 3), [0, 0, 0]);
        assert_eq!(drawn(Sampling { presence_penalty: 0.2, ..plain() }, &[], &[], 4), [0, 1, 0, 0]);
        assert_eq!(drawn(Sampling { frequency_penalty: 0.2, ..plain() }, &[], &[], 4), [0, 1, 0, 1]);
        let repeats = Sampling { repetition_penalty: 1.5, ..plain() };
        assert_eq!(drawn(repeats.clone(), &[], &[], 3), [0, 1, 0]);
        assert_eq!(drawn(repeats.clone(), &[0], &[], 2), [1, 0], "tokens of the prompt count");
        let bias = Sampling { logit_bias: vec![(3, 3.2), (9, 5.0)], ..plain() };
        assert_eq!(drawn(bias, &[], &[], 1), [3], "an id that the model does not have is passed over");
        let negative = Sampling { repetition_penalty: 2.0, logit_bias: vec![(0, -9.0), (1, -9.0)], ..plain() };
        assert_eq!(drawn(negative, &[2], &[], 1), [3], "a negative logit falls too");
        assert_eq!(drawn(Sampling { min_tokens: 2, ..plain() }, &[], &[0, 1], 3), [2, 2, 0]);
        assert_eq!(
            drawn(Sampling { min_tokens: 1, ..plain() }, &[], &[0, 1, 2, 3], 1).len(),
            1,
            "all of them are ends"
        );
    }

    #[test]
    fn min_p_keeps_tokens_of_that_share_of_the_likeliest() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.15f32.ln(), 0.05f32.ln()];
        let seen = |min_p| {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, min_p, seed: 3, ..Sampling::default() }, None);
            (0..2000).map(|_| sampler.draw(&logits).token).collect::<BTreeSet<u32>>()
        };
        assert_eq!(seen(0.0).len(), 4);
        assert_eq!(seen(0.2).len(), 3);
        assert_eq!(seen(0.5).len(), 2);
        assert_eq!(seen(1.0).len(), 1);
    }

    #[test]
    fn a_token_that_stands_already_has_its_rank() {
        let scored = score(&[0.1f32.ln(), 0.6f32.ln(), 0.3f32.ln()], 2, 1);
        assert_eq!((scored.token, scored.rank, scored.top[0].0), (2, 2, 1));
        assert!((scored.logprob - 0.3f32.ln()).abs() < 1e-6);
        assert_eq!(score(&[1.0, 1.0, 0.0], 1, 0).rank, 1, "equals share a rank");
    }

    #[test]
    fn log_probabilities_are_of_the_logits_as_they_are() {
        let logits = [0.1f32.ln() + 3.0, 0.6f32.ln() + 3.0, 0.15f32.ln() + 3.0, 0.15f32.ln() + 3.0];
        for (temperature, count) in [(0.0, 0), (0.0, 3), (2.0, 3), (2.0, 9)] {
            let mut sampler = Sampler::new(
                Sampling { temperature, top_p: 0.5, top_k: 1, seed: 7, ..Sampling::default() },
                Some(count),
            );
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
