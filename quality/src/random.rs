//! Draws that follow from a text: the same everywhere, and none of another text.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A source of draws.
pub struct Random(ChaCha8Rng);

impl Random {
    /// The draws of a text.
    pub fn of(text: &str) -> Self {
        Self(ChaCha8Rng::from_seed(*blake3::hash(text.as_bytes()).as_bytes()))
    }

    /// A number below `count`, each as likely. The rounding favours some by 2^-64 times the count:
    /// nothing here.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.0.next_u64()) * count as u128) >> 64) as usize
    }

    /// Whether something happens that has this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        let share = (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        share < probability
    }

    /// One of some things, at least one.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// `count` different things of some, in the order in which they are drawn.
    pub fn some_of<T: Copy>(&mut self, all: &[T], count: usize) -> Vec<T> {
        let mut left = all.to_vec();
        (0..count).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }

    /// Puts things into an order, each as likely (Fisher-Yates).
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_from_the_text_and_are_even() {
        let draws = |text: &str| {
            let mut random = Random::of(text);
            (0..20).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draws("a 1"), draws("a 1"));
        assert_ne!(draws("a 1"), draws("a 2"));
        let mut random = Random::of("even");
        let mut counts = [0; 5];
        for _ in 0..5000 {
            let mut order = [0, 1, 2, 3, 4];
            random.shuffle(&mut order);
            counts[order[0]] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        let happened = (0..5000).filter(|_| random.happens(0.3)).count();
        assert!((1400..1600).contains(&happened), "{happened}");
        let mut some = random.some_of(&[1, 2, 3, 4], 4);
        some.sort_unstable();
        assert_eq!(some, [1, 2, 3, 4]);
    }
}
