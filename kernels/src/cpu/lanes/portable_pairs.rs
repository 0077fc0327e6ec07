//! Pairs of bf16 without special instructions.

use half::bf16;

use super::super::stored::{pair, pair_of, pair_product};
use super::{Pairs, Portable};
use crate::packing::e4m3_in_f16;

/// The reference for machines without the instructions: tests compare with it.
impl Pairs for Portable {
    unsafe fn paired_with(self, next: Self) -> Self {
        let both = [self.0, next.0];
        let (pairs, _) = both.as_flattened().as_chunks::<2>();
        Self(std::array::from_fn(|i| pair(pairs[i][0], pairs[i][1])))
    }

    unsafe fn load_pairs(from: *const bf16, second: Option<*const bf16>) -> Self {
        // SAFETY: the caller promises `N` readable values.
        let read = |from: *const bf16| unsafe { from.cast::<[bf16; 8]>().read_unaligned() };
        let (first, second) = (read(from), second.map_or([bf16::ZERO; 8], read));
        Self(std::array::from_fn(|i| pair(first[i].to_f32(), second[i].to_f32())))
    }

    unsafe fn look_up_both(from: *const u8, part: usize, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller's promises.
        unsafe { Self::look_up(from, part == 1, table) }
    }

    unsafe fn look_up_less(from: *const u8, zero: u8, part: usize, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller promises 16 readable bytes.
        let bytes = unsafe { from.cast::<[u8; 16]>().read() };
        let code = |place: usize| if part == 1 { bytes[place] >> 4 } else { bytes[place] & 15 };
        let number = |place: usize| table[usize::from(code(place).wrapping_sub(zero) & 31)];
        Self(std::array::from_fn(|i| pair_of(number(2 * i), number(2 * i + 1))))
    }

    unsafe fn look_up(from: *const u8, high: bool, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller promises twice `N` readable bytes.
        let bytes = unsafe { from.cast::<[u8; 16]>().read() };
        let number = |place: usize| table[usize::from(if high { bytes[place] >> 4 } else { bytes[place] & 15 })];
        Self(std::array::from_fn(|i| pair_of(number(2 * i), number(2 * i + 1))))
    }

    unsafe fn look_up_five(from: *const u8, bits: u32, part: usize, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller promises 16 readable bytes.
        let bytes = unsafe { from.cast::<[u8; 16]>().read() };
        let code = |place: usize| if part == 1 { bytes[place] >> 4 } else { bytes[place] & 15 };
        let number = |place: usize| table[usize::from(code(place)) + 16 * (bits >> (16 * part + place) & 1) as usize];
        Self(std::array::from_fn(|i| pair_of(number(2 * i), number(2 * i + 1))))
    }

    unsafe fn look_up_five_of(both: [*const u8; 2], high: bool, at: u32, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller promises twice `N` readable bytes at both.
        let [bytes, fifth] = both.map(|from| unsafe { from.cast::<[u8; 16]>().read() });
        let code = |place: usize| if high { bytes[place] >> 4 } else { bytes[place] & 15 };
        let number = |place: usize| table[usize::from(code(place) | (fifth[place] >> at & 1) << 4)];
        Self(std::array::from_fn(|i| pair_of(number(2 * i), number(2 * i + 1))))
    }

    unsafe fn load_e4m3_paired(from: *const u8) -> Self {
        // SAFETY: the caller promises twice `N` readable bytes.
        let bytes = unsafe { from.cast::<[u8; 16]>().read() };
        let numbers = bytes.map(|code| e4m3_in_f16(code).to_f32());
        Self(std::array::from_fn(|i| pair(numbers[2 * i], numbers[2 * i + 1])))
    }

    unsafe fn load_i8_paired(from: *const i8) -> Self {
        // SAFETY: the caller promises twice `N` readable numbers.
        let numbers = unsafe { from.cast::<[i8; 16]>().read() }.map(f32::from);
        Self(std::array::from_fn(|i| pair(numbers[2 * i], numbers[2 * i + 1])))
    }

    fn total(self) -> f32 {
        self.0.iter().sum()
    }

    fn masked(self, bits: u32) -> Self {
        Self(self.0.map(|lane| f32::from_bits(lane.to_bits() & bits)))
    }

    unsafe fn dot(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + pair_product(a.0[i], b.0[i])))
    }
}
