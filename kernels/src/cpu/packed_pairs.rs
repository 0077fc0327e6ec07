//! Matrix products of few rows with a weight in E4M3, in pairs of bf16: codes are such numbers
//! exactly, so that each is converted and multiplied at once, and only the sum of the runs that
//! share a scale is multiplied by it. Inputs are rounded to bf16; sums are f32. Packings of whole
//! numbers have `packed_integers.rs`.

use super::block::f32_of;
use super::few_rows::{Turns, block_of, blocks_of, in_tasks};
use super::lanes::prefetch_bytes;
use super::level::{Level, NARROW, PairKernel, dispatch_narrow_pairs, dispatch_pairs};
use super::many_rows::paired;
use super::pairs::Pairs;
use crate::{Packed, Packing};

/// Numbers of a run.
const RUN: usize = 32;

/// Most rows whose sums are in registers at a time.
const ROWS: usize = 8;
/// Columns whose sums are kept while a piece of the inputs is near.
const COLUMNS: usize = 16;
/// Numbers of all rows together in a piece: half of the nearest cache.
const NEAR: usize = 1 << 13;
/// Columns from one that is multiplied to one whose bytes are prefetched.
const AHEAD: usize = 16;

/// The product of a weight in E4M3; `None` for others. As [`super::packed_rows::product`].
pub(super) fn product(level: Level, x: &[f32], weight: &Packed) -> Option<Vec<f32>> {
    match weight.packing() {
        Packing::Fp8 => Some(with::<1>(level, x, weight)),
        Packing::Fp8G128 => Some(with::<4>(level, x, weight)),
        _ => None,
    }
}

/// The same of a weight whose runs share a scale, so many of them.
fn with<const RUNS: usize>(level: Level, x: &[f32], weight: &Packed) -> Vec<f32> {
    let inputs = weight.dims()[1];
    let rows = x.len() / inputs;
    assert_eq!(x.len(), rows * inputs, "x");
    // Narrow vectors take less time where each run has a scale.
    let narrow = RUNS == 1;
    let pairs = paired(level, x);
    let lanes = if narrow { NARROW } else { level.lanes() };
    let pairs = Turns::in_blocks(lanes, pairs.get(), inputs / 2, blocks_of(ROWS, rows));
    in_tasks(rows, weight.bytes(), weight.row_bytes(), |columns, out| {
        let work = PackedPairs::<RUNS> { rows, pairs: &pairs, inputs, columns, out };
        if narrow { dispatch_narrow_pairs(level, work) } else { dispatch_pairs(level, work) }
    })
}

/// Blocks of runs with one scale.
struct PackedPairs<'a, const RUNS: usize> {
    rows: usize,
    /// Of `[rows, inputs / 2]`.
    pairs: &'a Turns<'a>,
    inputs: usize,
    /// `[columns, blocks]`.
    columns: &'a [u8],
    /// `[rows, columns]`.
    out: &'a mut [f32],
}

impl<const RUNS: usize> PairKernel for PackedPairs<'_, RUNS> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(mut self) {
        let columns = self.columns.len() / (self.inputs / RUN / RUNS * Self::BYTES);
        assert_eq!(self.out.len(), self.rows * columns, "room for the result");
        for first in (0..columns).step_by(COLUMNS) {
            let mut row = 0;
            while row < self.rows {
                // SAFETY: the caller promises the instructions; these rows and columns are there.
                row += unsafe {
                    match block_of(ROWS, self.rows - row) {
                        1 => self.columns::<V, 1>(row, first),
                        2 => self.columns::<V, 2>(row, first),
                        4 => self.columns::<V, 4>(row, first),
                        _ => self.columns::<V, ROWS>(row, first),
                    }
                };
            }
        }
    }
}

impl<const RUNS: usize> PackedPairs<'_, RUNS> {
    /// Bytes of a block: a scale and its codes.
    const BYTES: usize = 4 + RUN * RUNS;

    /// R rows from `row` on times [`COLUMNS`] columns, or as many as are left, from `first` on: a
    /// piece of the inputs of all of them after the other, so that the rows' piece stays in the
    /// nearest cache. Returns R.
    ///
    /// # Safety
    /// The machine has the instructions for pairs; the rows are there.
    #[inline(always)]
    unsafe fn columns<V: Pairs, const R: usize>(&mut self, row: usize, first: usize) -> usize {
        let blocks = self.inputs / RUN / RUNS;
        let row_bytes = blocks * Self::BYTES;
        let (all, columns) = (self.columns, self.columns.len() / row_bytes);
        let width = COLUMNS.min(columns - first);
        // One row is near whole: a column is read from one end to the other.
        let piece = if R == 1 { blocks } else { (NEAR / R / RUN / RUNS).max(1) };
        // SAFETY: the caller promises the instructions.
        let mut sums = unsafe { [[V::splat(0.0); R]; COLUMNS] };
        for from in (0..blocks).step_by(piece) {
            let bytes = from * Self::BYTES..blocks.min(from + piece) * Self::BYTES;
            for (column, sums) in sums[..width].iter_mut().enumerate() {
                let place = (first + column) * row_bytes;
                if R > 1 {
                    prefetch_bytes::<V>(
                        all.as_ptr().wrapping_add(place + bytes.start + AHEAD * row_bytes),
                        bytes.len(),
                    );
                }
                let piece = &all[place + bytes.start..place + bytes.end];
                // SAFETY: the caller's promises.
                unsafe { self.piece(row, from, piece, sums) }
            }
        }
        for (column, sums) in sums[..width].iter().enumerate() {
            for (r, sum) in sums.iter().enumerate() {
                self.out[(row + r) * columns + first + column] = sum.total();
            }
        }
        R
    }

    /// Adds the products of R rows from `row` on with some blocks of a column, of which `from` is
    /// the first.
    ///
    /// # Safety
    /// The machine has the instructions for pairs; the rows are there, and have as many inputs.
    #[inline(always)]
    unsafe fn piece<V: Pairs, const R: usize>(&self, row: usize, from: usize, bytes: &[u8], sums: &mut [V; R]) {
        let pairs = self.pairs.of_block(row, R, from * RUNS * RUN / 2).as_ptr();
        // SAFETY: the caller's promises; a block has `RUNS` runs of 32 numbers, of which the rows
        // have as many.
        unsafe {
            let mut lanes = *sums;
            for (index, block) in bytes.chunks_exact(Self::BYTES).enumerate() {
                let mut dots = [V::splat(0.0); R];
                for run in 0..RUNS {
                    for part in 0..RUN / 2 / V::N {
                        let codes = Self::codes::<V>(block.as_ptr().add(4), run, part);
                        let from = (index * RUNS + run) * RUN / 2 + part * V::N;
                        for (r, dot) in dots.iter_mut().enumerate() {
                            *dot = dot.dot(codes, V::load(pairs.add(R * from + r * V::N)));
                        }
                    }
                }
                // Codes are divided by 256.
                let scale = V::splat(256.0 * f32_of(block));
                for (sum, dot) in lanes.iter_mut().zip(dots) {
                    *sum = dot.mul_add(scale, *sum);
                }
            }
            *sums = lanes;
        }
    }

    /// `2 · V::N` codes of a run, from code `2 · V::N · part` on, divided by 256.
    ///
    /// # Safety
    /// The machine has the instructions for pairs; there are `RUNS` runs of 32 codes.
    #[inline(always)]
    unsafe fn codes<V: Pairs>(from: *const u8, run: usize, part: usize) -> V {
        // SAFETY: the caller's promises.
        unsafe {
            match RUNS {
                1 => V::load_e4m3_paired(from.add(2 * V::N * part)),
                // Two runs are converted at once.
                _ => V::load_e4m3_of_64(from.add(2 * RUN * (run / 2)), run % 2 * (RUN / 2 / V::N) + part),
            }
        }
    }
}
