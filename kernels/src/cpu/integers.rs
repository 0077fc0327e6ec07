//! Codes of packed weights as bytes, and their products with rows in fixed point
//! (`fixed_point.rs`) in sums of whole numbers.
//!
//! A vector has four lanes for each of some neighbouring runs of 32 codes: the first for codes 0 to
//! 3 and 16 to 19 of the run, the second for the next four of both halves, and so on.

use super::lanes::Lanes;

/// A vector that belongs to [`RUNS`](Self::RUNS) runs.
pub(super) trait Integers: Lanes {
    /// Runs of a vector.
    const RUNS: usize = Self::N / 4;

    /// 16 bytes of each run.
    type Bytes: Copy;
    /// `2 · N` numbers of 16 bits, of two neighbours in each lane.
    type Words: Copy;
    /// `N` sums.
    type Sums: Copy;

    /// Those at one address for each run; further addresses are not read.
    ///
    /// # Safety
    /// The machine has the instructions of this type; each address is valid for 16 reads.
    unsafe fn load_runs(from: [*const u8; 4]) -> Self::Bytes;

    /// The bits of `mask` of each byte, from bit `at` on.
    fn part(bytes: Self::Bytes, at: u32, mask: u8) -> Self::Bytes;

    /// The same from a bit on that each run has for itself.
    fn parts(bytes: Self::Bytes, at: [u32; 4], mask: u8) -> Self::Bytes;

    /// `low` and, from bit `at` of each byte on, `high`.
    fn above(low: Self::Bytes, high: Self::Bytes, at: u32) -> Self::Bytes;

    /// `value` more in each byte whose bit is set.
    fn with_bits(bytes: Self::Bytes, bits: u64, value: u8) -> Self::Bytes;

    /// Numbers with a sign, 128 more each.
    fn more_by_128(bytes: Self::Bytes) -> Self::Bytes;

    /// The numbers of a table at bytes below 16.
    fn translated(bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;

    /// Sums of nothing.
    ///
    /// # Safety
    /// The machine has the instructions of this type.
    unsafe fn nothing() -> Self::Sums;

    /// `N` whole numbers from memory.
    ///
    /// # Safety
    /// The machine has the instructions of this type; `from` is valid for `N` reads.
    unsafe fn load_sums(from: *const i32) -> Self::Sums;

    /// The even bytes and the odd ones.
    fn widened(bytes: Self::Bytes) -> [Self::Words; 2];

    /// `sums` and, in each lane, the products of two codes with inputs.
    ///
    /// # Safety
    /// The machine has the instructions of this type; `inputs` is valid for `2 · N` reads.
    unsafe fn dot(sums: Self::Sums, codes: Self::Words, inputs: *const i16) -> Self::Sums;

    /// Each sum as a float.
    fn floats(sums: Self::Sums) -> Self;

    /// A number in f16 for each run, the first one in the lowest bits, in all of its lanes.
    ///
    /// # Safety
    /// The machine has the instructions of this type.
    unsafe fn spread_f16(numbers: u64) -> Self;

    /// The same of f32.
    ///
    /// # Safety
    /// The machine has the instructions of this type.
    unsafe fn spread(numbers: [f32; 4]) -> Self;

    /// The same of whole numbers with a sign, of every byte, or of every second one.
    ///
    /// # Safety
    /// The machine has the instructions of this type.
    unsafe fn spread_i8<const STEP: usize>(numbers: u64) -> Self;
}
