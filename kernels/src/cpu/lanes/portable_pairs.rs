//! Pairs of bf16 without special instructions.

use super::super::pairs::Pairs;
use super::super::stored::{pair, pair_product};
use super::Portable;

/// The reference for machines without the instructions: tests compare with it.
impl Pairs for Portable {
    unsafe fn paired_with(self, next: Self) -> Self {
        let both = [self.0, next.0];
        let (pairs, _) = both.as_flattened().as_chunks::<2>();
        Self(std::array::from_fn(|i| pair(pairs[i][0], pairs[i][1])))
    }

    fn total(self) -> f32 {
        self.0.iter().sum()
    }

    unsafe fn dot(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + pair_product(a.0[i], b.0[i])))
    }
}
