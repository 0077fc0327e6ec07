//! Rows of inputs in fixed point: a row has a scale, and its numbers are whole multiples of it in
//! 16 bits, of which the largest has 32767. So codes of packed weights meet inputs in whole numbers
//! ([`Integers`]).
//!
//! The error of a number is at most half a scale, 2⁻¹⁶ of the row's largest one. That of 2¹⁶
//! numbers together, by the root of the sum of squares, is no more than the 2⁻⁸ of that one number
//! by which bf16 may miss it.

use std::ops::Range;

use super::integers::Integers;
use super::level::{IntegerKernel, Level, dispatch_integers};
use super::pack::Aligned;

/// Numbers of a run.
pub(super) const RUN: usize = 32;
/// The largest number.
const LARGEST: f32 = i16::MAX as f32;
/// A row whose numbers are all below it counts as zeros: the reciprocal of a scale is finite well
/// above it.
const LEAST: f32 = 1e-30;

/// What codes ask of the rows that they meet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meets {
    /// The code of 0.
    pub(super) zero: u8,
    /// Whether runs of codes have an offset, and no such code.
    pub(super) offsets: bool,
    /// Whether both halves of a run have scales of their own.
    pub(super) halves: bool,
}

/// Rows in fixed point, group of runs after group, the rows of a block by turns.
///
/// A group has as many runs as a vector of [`Integers`]. Of `N` lanes it has so many times 32 bits:
/// `N` for the even numbers of the first halves of its runs, for the odd ones, and for those of the
/// second halves; then `N` for the sums of each lane's inputs, or `2 · N` for the first halves and
/// the second where these are apart. Sums are f32 where codes have offsets; else they are whole
/// numbers, times the code of 0 and negative.
#[derive(Debug)]
pub(super) struct FixedPoint {
    numbers: Aligned,
    /// Of each row.
    scales: Vec<f32>,
    groups: usize,
    /// Times 32 bits of a group.
    size: usize,
}

impl FixedPoint {
    /// Those of `x` `[rows, inputs]`, in blocks of rows.
    pub(super) fn new(
        level: Level,
        x: &[f32],
        inputs: usize,
        meets: Meets,
        blocks: impl Iterator<Item = Range<usize>>,
    ) -> Self {
        let lanes = level.integer_lanes();
        let (groups, size) = ((inputs / RUN).div_ceil(lanes / 4), meets.vectors() * lanes);
        let mut numbers = Aligned::new(x.len() / inputs * groups * size);
        let mut scales = vec![0.0; x.len() / inputs];
        for block in blocks {
            let to = &mut numbers.get_mut()[block.start * groups * size..block.end * groups * size];
            let rows = x[block.start * inputs..block.end * inputs].chunks_exact(inputs);
            for (row, (x, scale)) in rows.zip(&mut scales[block.clone()]).enumerate() {
                dispatch_integers(level, Fill { x, meets, scale, to, rows: block.len(), row });
            }
        }
        Self { numbers, scales, groups, size }
    }

    /// Groups of a row.
    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    /// The scale of each row.
    pub(super) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// From a group on, of the block of `count` rows that begins with `row`.
    pub(super) fn of_block(&self, row: usize, count: usize, group: usize) -> &[f32] {
        let places = row * self.groups + group * count..(row + count) * self.groups;
        &self.numbers.get()[places.start * self.size..places.end * self.size]
    }
}

/// One row of a block.
struct Fill<'a> {
    /// `[inputs]`.
    x: &'a [f32],
    meets: Meets,
    scale: &'a mut f32,
    /// The block's numbers.
    to: &'a mut [f32],
    /// Rows of the block.
    rows: usize,
    /// The row's number in it.
    row: usize,
}

impl IntegerKernel for Fill<'_> {
    #[inline(always)]
    unsafe fn run<V: Integers>(self) {
        let Self { x, meets, scale, to, rows, row } = self;
        let reciprocal;
        (*scale, reciprocal) = scale_of(x);
        let groups = to.chunks_exact_mut(meets.vectors() * V::N).skip(row).step_by(rows);
        for (x, to) in x.chunks(V::RUNS * RUN).zip(groups) {
            let (pairs, sums) = to.split_at_mut(PAIRS * V::N);
            for (run, x) in x.as_chunks::<RUN>().0.iter().enumerate() {
                let mut of_lanes = [[0; 4]; 2];
                for (four, x) in x.as_chunks::<4>().0.iter().enumerate() {
                    let of = x.map(|x| whole(x * reciprocal));
                    let at = four / 4 * SECOND * V::N + 4 * run + four % 4;
                    [pairs[at], pairs[V::N + at]] = [pair(of[0], of[2]), pair(of[1], of[3])];
                    of_lanes[four / 4][four % 4] = of.into_iter().fold(0_i32, i32::wrapping_add);
                }
                for lane in 0..4 {
                    let [first, second] = of_lanes.map(|lanes| lanes[lane]);
                    if meets.halves {
                        sums[4 * run + lane] = meets.sum(first);
                        sums[V::N + 4 * run + lane] = meets.sum(second);
                    } else {
                        sums[4 * run + lane] = meets.sum(first.wrapping_add(second));
                    }
                }
            }
        }
    }
}

/// Vectors of pairs of numbers in a group.
pub(super) const PAIRS: usize = 4;
/// Of these, those before the pairs of the second halves.
pub(super) const SECOND: usize = 2;

impl Meets {
    /// Vectors of a group.
    pub(super) fn vectors(self) -> usize {
        PAIRS + if self.halves { 2 } else { 1 }
    }

    /// What a sum of inputs is kept as.
    #[inline(always)]
    fn sum(self, sum: i32) -> f32 {
        match self.offsets {
            true => sum as f32,
            false => f32::from_bits((-i32::from(self.zero)).wrapping_mul(sum).cast_unsigned()),
        }
    }
}

/// A row's scale and its reciprocal, which is 0 where all is. Numbers that are not finite give a
/// scale that is none, so that they are seen in every sum.
#[inline(always)]
fn scale_of(x: &[f32]) -> (f32, f32) {
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() << 1 >> 1);
    }
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return (f32::NAN, 0.0);
    }
    if largest > LEAST { (largest / LARGEST, LARGEST / largest) } else { (0.0, 0.0) }
}

/// The nearest whole number.
#[inline(always)]
fn whole(x: f32) -> i32 {
    /// Adding 1.5·2²³ rounds to a whole number, which is then in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    (x + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed()
}

/// Two numbers in the bits of one of 32, the first in the lower half.
#[inline(always)]
fn pair(first: i32, second: i32) -> f32 {
    f32::from_bits((first & 0xffff | second << 16).cast_unsigned())
}
