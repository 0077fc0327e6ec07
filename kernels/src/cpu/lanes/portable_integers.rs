//! Codes and sums of whole numbers without special instructions.

use half::f16;

use super::super::integers::Integers;
use super::Portable;

/// Each byte by its place.
#[inline(always)]
fn each(bytes: [u8; 32], f: impl Fn(usize, u8) -> u8) -> [u8; 32] {
    std::array::from_fn(|i| f(i, bytes[i]))
}

impl Integers for Portable {
    type Bytes = [u8; 32];
    type Words = [i16; 16];
    type Sums = [i32; 8];

    #[inline(always)]
    unsafe fn load_runs(from: [*const u8; 4]) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (to, from) in bytes.chunks_exact_mut(16).zip(from) {
            // SAFETY: the caller promises 16 readable bytes.
            to.copy_from_slice(&unsafe { from.cast::<[u8; 16]>().read() });
        }
        bytes
    }

    #[inline(always)]
    fn part(bytes: [u8; 32], at: u32, mask: u8) -> [u8; 32] {
        each(bytes, |_, byte| byte >> at & mask)
    }

    #[inline(always)]
    fn parts(bytes: [u8; 32], at: [u32; 4], mask: u8) -> [u8; 32] {
        each(bytes, |i, byte| byte >> at[i / 16] & mask)
    }

    #[inline(always)]
    fn above(low: [u8; 32], high: [u8; 32], at: u32) -> [u8; 32] {
        each(low, |i, low| low | high[i] << at)
    }

    #[inline(always)]
    fn with_bits(bytes: [u8; 32], bits: u64, value: u8) -> [u8; 32] {
        each(bytes, |i, byte| byte + value * (bits >> i & 1) as u8)
    }

    #[inline(always)]
    fn more_by_128(bytes: [u8; 32]) -> [u8; 32] {
        each(bytes, |_, byte| byte ^ 0x80)
    }

    #[inline(always)]
    fn translated(bytes: [u8; 32], table: &[u8; 16]) -> [u8; 32] {
        each(bytes, |_, byte| table[usize::from(byte & 15)])
    }

    #[inline(always)]
    unsafe fn nothing() -> [i32; 8] {
        [0; 8]
    }

    #[inline(always)]
    unsafe fn load_sums(from: *const i32) -> [i32; 8] {
        // SAFETY: the caller promises `N` readable numbers; an array of i32 has its alignment.
        unsafe { from.cast::<[i32; 8]>().read() }
    }

    #[inline(always)]
    fn widened(bytes: [u8; 32]) -> [[i16; 16]; 2] {
        [0, 1].map(|first| std::array::from_fn(|i| i16::from(bytes[2 * i + first])))
    }

    #[inline(always)]
    unsafe fn dot(sums: [i32; 8], codes: [i16; 16], inputs: *const i16) -> [i32; 8] {
        // SAFETY: the caller promises `2 · N` readable numbers; an array of i16 has its alignment.
        let inputs = unsafe { inputs.cast::<[i16; 16]>().read() };
        let product = |i: usize| i32::from(codes[i]) * i32::from(inputs[i]);
        std::array::from_fn(|lane| sums[lane] + product(2 * lane) + product(2 * lane + 1))
    }

    #[inline(always)]
    fn floats(sums: [i32; 8]) -> Self {
        Self(sums.map(|sum| sum as f32))
    }

    #[inline(always)]
    unsafe fn spread_f16(numbers: u64) -> Self {
        Self(std::array::from_fn(|lane| f16::from_bits((numbers >> (16 * (lane / 4))) as u16).to_f32()))
    }

    #[inline(always)]
    unsafe fn spread(numbers: [f32; 4]) -> Self {
        Self(std::array::from_fn(|lane| numbers[lane / 4]))
    }

    #[inline(always)]
    unsafe fn spread_i8<const STEP: usize>(numbers: u64) -> Self {
        let bytes = numbers.to_le_bytes();
        Self(std::array::from_fn(|lane| f32::from(bytes[lane / 4 * STEP].cast_signed())))
    }
}
