//! Random numbers of a seed, the arrivals of a Poisson process, and Zipf's law over the documents
//! of a corpus.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Random numbers that follow from a seed and their purpose on every machine.
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// The draws number `number` of a kind, of a seed. No two of them share their numbers.
    pub fn new(seed: u64, kind: u32, number: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..12].copy_from_slice(&kind.to_le_bytes());
        key[12..20].copy_from_slice(&number.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// From 0, inclusive, to 1, exclusive.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `count` numbers from 0 on; there is at least one.
    pub fn below(&mut self, count: usize) -> usize {
        // The product rounds up to `count` for no number below 1 and no count that memory could
        // hold.
        (self.uniform() * count as f64) as usize
    }

    /// From an exponential distribution of mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }
}

/// The times at which requests arrive, from the beginning of a window: a Poisson process. With one
/// seed the arrivals of two rates are the same but for the scale of time, so that rates are
/// compared and not luck.
pub struct Arrivals {
    draws: Draws,
    rate: f64,
    /// Expected number of arrivals until the last one that was given.
    expected: f64,
}

impl Arrivals {
    /// Arrivals of `rate` requests a second.
    pub fn new(seed: u64, rate: f64) -> Self {
        Self { draws: Draws::new(seed, ARRIVALS, 0), rate, expected: 0.0 }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.expected += self.draws.exponential();
        Duration::try_from_secs_f64(self.expected / self.rate).ok()
    }
}

/// The kind of draws that arrivals are.
const ARRIVALS: u32 = 1;

/// Zipf's law: document k (from 0) is drawn with a probability in proportion to 1 / (k + 1)^S. With
/// S = 0 all are alike.
pub struct Zipf {
    /// Sum of the weights up to each document, it included.
    sums: Vec<f64>,
}

impl Zipf {
    /// The law over `documents` documents, at least one.
    pub fn new(documents: usize, exponent: f64) -> Self {
        let weights = (1..=documents).map(|rank| (rank as f64).powf(-exponent));
        let sums = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { sums: sums.collect() }
    }

    /// Draws `count` different documents one after another, each among those that are left, with
    /// probabilities in proportion to their weights. There are at least as many documents.
    pub fn distinct(&self, count: usize, draws: &mut Draws) -> Vec<usize> {
        assert!(count <= self.sums.len(), "{count} different documents of {}", self.sums.len());
        let mut drawn = Vec::with_capacity(count);
        // The same in ascending order: terms that are taken out of the sums.
        let mut taken: Vec<usize> = Vec::with_capacity(count);
        while drawn.len() < count {
            let left = |until: usize| {
                let out =
                    taken.iter().take_while(|&&document| document <= until).map(|&document| self.weight(document));
                self.sums[until] - out.sum::<f64>()
            };
            let at = draws.uniform() * left(self.sums.len() - 1);
            let found = partition_point(self.sums.len(), |document| left(document) <= at);
            // By rounding alone can a document be hit that is taken, or none at all: then the
            // nearest free one is meant.
            let near = (found..self.sums.len()).chain((0..found.min(self.sums.len())).rev());
            let free = near.into_iter().find(|document| !taken.contains(document));
            let document = free.expect("fewer are taken than there are");
            drawn.push(document);
            taken.insert(taken.partition_point(|&other| other < document), document);
        }
        drawn
    }

    fn weight(&self, document: usize) -> f64 {
        self.sums[document] - document.checked_sub(1).map_or(0.0, |before| self.sums[before])
    }
}

/// First number below `count` for which the condition does not hold. It holds for all smaller
/// numbers, and for none from there on.
fn partition_point(count: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut from, mut to) = (0, count);
    while from < to {
        let middle = usize::midpoint(from, to);
        if holds(middle) { from = middle + 1 } else { to = middle }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_those_of_a_poisson_process() {
        const COUNT: usize = 20_000;
        let rate = 40.0;
        let times: Vec<f64> = Arrivals::new(3, rate).take(COUNT).map(|time| time.as_secs_f64()).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // The mean of n exponential gaps has a standard deviation of 1/√n of itself, their variance
        // one of √8/√n.
        assert!((mean * rate - 1.0).abs() < 4.0 / (COUNT as f64).sqrt(), "mean gap {mean}");
        assert!((variance * rate * rate - 1.0).abs() < 12.0 / (COUNT as f64).sqrt(), "variance {variance}");
        // Counts of a second have a variance that equals their mean.
        let seconds = times[COUNT - 1].floor() as usize;
        let mut counts = vec![0.0; seconds];
        times.iter().filter(|&&time| time < seconds as f64).for_each(|&time| counts[time as usize] += 1.0);
        let mean = counts.iter().sum::<f64>() / seconds as f64;
        let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / seconds as f64;
        assert!((variance / mean - 1.0).abs() < 0.3, "of {seconds} seconds: mean {mean}, variance {variance}");
    }

    #[test]
    fn rates_of_one_seed_differ_in_scale_alone() {
        let times = |seed, rate| Arrivals::new(seed, rate).take(100).map(|time| time.as_secs_f64()).collect::<Vec<_>>();
        let (slow, fast) = (times(1, 1.0), times(1, 8.0));
        assert!(slow.iter().zip(&fast).all(|(slow, fast)| (slow / 8.0 - fast).abs() < 1e-6));
        assert_ne!(slow, times(2, 1.0));
    }

    /// Share of each document in all requests.
    fn shares(documents: usize, exponent: f64, count: usize) -> Vec<f64> {
        const REQUESTS: usize = 40_000;
        let (zipf, mut draws) = (Zipf::new(documents, exponent), Draws::new(5, 9, 0));
        let mut counts = vec![0.0; documents];
        for _ in 0..REQUESTS {
            let drawn = zipf.distinct(count, &mut draws);
            let mut different = drawn.clone();
            different.sort_unstable();
            different.dedup();
            assert_eq!(different.len(), count, "{drawn:?}");
            drawn.into_iter().for_each(|document| counts[document] += 1.0);
        }
        counts.into_iter().map(|drawn: f64| drawn / REQUESTS as f64).collect()
    }

    #[test]
    fn documents_are_drawn_by_zipfs_law() {
        let found = shares(10, 1.0, 1);
        let sum: f64 = (1..=10).map(|rank| 1.0 / f64::from(rank)).sum();
        for (document, share) in found.iter().enumerate() {
            let wanted = 1.0 / ((document + 1) as f64 * sum);
            assert!((share - wanted).abs() < 0.01, "document {document}: {share}, not {wanted}");
        }
        for share in shares(10, 0.0, 3) {
            assert!((share - 0.3).abs() < 0.012, "alike: {share}");
        }
        // Two of three with weights 1, 1/2, 1/3: a document is left out as the two others come
        // first, in either order.
        let weights = [6.0 / 11.0, 3.0 / 11.0, 2.0 / 11.0];
        let pair = |a: f64, b: f64| a * b / (1.0 - a) + b * a / (1.0 - b);
        for (document, share) in shares(3, 1.0, 2).into_iter().enumerate() {
            let wanted = 1.0 - pair(weights[(document + 1) % 3], weights[(document + 2) % 3]);
            assert!((share - wanted).abs() < 0.012, "document {document}: {share}, not {wanted}");
        }
    }

    #[test]
    fn all_documents_can_be_drawn_however_steep_the_law() {
        let zipf = Zipf::new(64, 12.0);
        let mut drawn = zipf.distinct(64, &mut Draws::new(0, 9, 0));
        drawn.sort_unstable();
        assert_eq!(drawn, (0..64).collect::<Vec<_>>());
    }
}
