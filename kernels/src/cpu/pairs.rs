//! Vectors whose lanes hold pairs of bf16: products of pairs, and codes in E4M3 as such pairs.

use half::bf16;

use super::lanes::{Lanes, WIDEST};
use crate::packing::e4m3_in_f16;

/// Two numbers in the bits of one f32, the first in the lower half.
#[inline(always)]
pub(super) fn pair_of(first: bf16, second: bf16) -> f32 {
    f32::from_bits(u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16)
}

/// A vector whose lanes can hold pairs of bf16 too, the first of a pair in the lower half: a
/// product of pairs sums two terms of its depth at once. Subnormal numbers count as 0.
pub(super) trait Pairs: Lanes {
    /// `2 · N` values from memory, rounded to pairs of neighbours.
    ///
    /// # Safety
    /// The machine has the instructions for pairs; `from` is valid for `2 · N` reads.
    #[inline(always)]
    unsafe fn load_paired(from: *const f32) -> Self {
        // SAFETY: the caller's promises.
        unsafe { Self::load(from).paired_with(Self::load(from.add(Self::N))) }
    }

    /// The lanes of both, those of `self` first, rounded to pairs of neighbours.
    ///
    /// # Safety
    /// The machine has the instructions for pairs.
    unsafe fn paired_with(self, next: Self) -> Self;

    /// Numbers by their places, as pairs of neighbours: the reference of what follows, for types
    /// that are not asked for it or have no instructions.
    ///
    /// # Safety
    /// The machine has the instructions of this type.
    #[inline(always)]
    unsafe fn of_numbers(number: impl Fn(usize) -> bf16) -> Self {
        let mut pairs = [0.0; WIDEST];
        for (i, pair) in pairs.iter_mut().enumerate().take(Self::N) {
            *pair = pair_of(number(2 * i), number(2 * i + 1));
        }
        // SAFETY: the caller's promise; `WIDEST` values are at least a vector.
        unsafe { Self::load(pairs.as_ptr()) }
    }

    /// `N` values from memory, each the first of a pair whose second comes from another place, or
    /// is 0.
    ///
    /// # Safety
    /// The machine has the instructions of this type; both are valid for `N` reads.
    #[inline(always)]
    unsafe fn load_pairs(from: *const bf16, second: Option<*const bf16>) -> Self {
        // SAFETY: the caller's promises.
        let [first, second] =
            [Some(from), second].map(|from| move |i: usize| from.map_or(bf16::ZERO, |from| unsafe { *from.add(i) }));
        // SAFETY: the caller's promise.
        unsafe { Self::of_numbers(|i| if i % 2 == 0 { first(i / 2) } else { second(i / 2) }) }
    }

    /// `self` and, in each lane, both products of the pairs of `a` and `b`.
    ///
    /// # Safety
    /// The machine has the instructions for pairs.
    unsafe fn dot(self, a: Self, b: Self) -> Self;

    /// `2 · N` numbers in E4M3 from memory, divided by 256.
    ///
    /// # Safety
    /// The machine has the instructions for pairs; `from` is valid for `2 · N` reads.
    #[inline(always)]
    unsafe fn load_e4m3_paired(from: *const u8) -> Self {
        // SAFETY: the caller's promises.
        unsafe { Self::of_numbers(|i| bf16::from_f32(e4m3_in_f16(*from.add(i)).to_f32())) }
    }

    /// The same of 64, from number `2 · N · part` on.
    ///
    /// # Safety
    /// The machine has the instructions for pairs; `from` is valid for 64 reads.
    #[inline(always)]
    unsafe fn load_e4m3_of_64(from: *const u8, part: usize) -> Self {
        // SAFETY: the caller's promises.
        unsafe { Self::load_e4m3_paired(from.add(2 * Self::N * part)) }
    }

    /// The sum of all lanes.
    fn total(self) -> f32;

    /// The bits of each lane that are among `bits`.
    #[inline(always)]
    fn masked(self, bits: u32) -> Self {
        let mut lanes = [0.0_f32; WIDEST];
        // SAFETY: `self` proves the instructions; `WIDEST` values are at least a vector.
        unsafe {
            self.store(lanes.as_mut_ptr());
            lanes.iter_mut().for_each(|lane| *lane = f32::from_bits(lane.to_bits() & bits));
            Self::load(lanes.as_ptr())
        }
    }
}
