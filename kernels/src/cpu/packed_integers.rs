//! Matrix products of few rows with a packed weight, in whole numbers: inputs are in fixed point
//! (`fixed_point.rs`), and so the sum of a run of codes is exact. It is multiplied by the scales of
//! the run and of its inputs; sums of runs are f32.

// Loops over register blocks count, so that they read like the products they are and unroll whole.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;
use std::ops::Range;

use super::codes::{self, Codes};
use super::few_rows::{block_of, blocks_of, in_tasks};
use super::fixed_point::{FixedPoint, Meets, PAIRS, RUN, SECOND};
use super::integers::Integers;
use super::lanes::{WIDEST, prefetch_bytes};
use super::level::{IntegerKernel, Level, dispatch_integers};
use crate::{Packed, Packing};

/// Rows of a block at most.
const MOST_ROWS: usize = 4;
/// Inputs of several rows together that are near while a column meets them.
const NEAR: usize = 1 << 12;
/// Columns from one that several rows meet to one whose bytes are prefetched.
const AHEAD: usize = 16;
/// The same in bytes, about, where one row meets columns: two at a time, since reading its inputs
/// takes longer than reading codes, and the processor follows neither of two streams far enough by
/// itself.
const AHEAD_BYTES: usize = 8 << 10;
/// Bytes of the longest blocks of one run, as many as a vector takes.
const LONGEST: usize = 4 * 36;

/// `x · weightᵀ`, `[rows, outputs]`: `x` `[rows, inputs]`. `None` where codes are no whole numbers.
/// The bits of a result depend neither on the number of threads nor on the other rows.
pub(super) fn product(level: Level, x: &[f32], weight: &Packed) -> Option<Vec<f32>> {
    let call = Call { level, x, weight };
    Some(match weight.packing() {
        Packing::Q4_0 => call.with::<codes::Q4_0>(),
        Packing::Q4_1 => call.with::<codes::Q4_1>(),
        Packing::Q5_0 => call.with::<codes::Q5_0>(),
        Packing::Q5_1 => call.with::<codes::Q5_1>(),
        Packing::Q8_0 => call.with::<codes::Q8_0>(),
        Packing::Q2K => call.with::<codes::Q2K>(),
        Packing::Q3K => call.with::<codes::Q3K>(),
        Packing::Q4K => call.with::<codes::Q4K>(),
        Packing::Q5K => call.with::<codes::Q5K>(),
        Packing::Q6K => call.with::<codes::Q6K>(),
        Packing::Iq4Nl => call.with::<codes::Iq4Nl>(),
        Packing::Iq4Xs => call.with::<codes::Iq4Xs>(),
        Packing::Mxfp4 => call.with::<codes::Mxfp4>(),
        Packing::Int8 => call.with::<codes::Int8>(),
        Packing::Int4 => call.with::<codes::Int4>(),
        Packing::Int8G128 => call.with::<codes::Int8G128>(),
        Packing::Int4G128 => call.with::<codes::Int4G128>(),
        Packing::Fp8 | Packing::Fp8G128 => return None,
    })
}

const fn meets<B: Codes>() -> Meets {
    Meets { zero: B::ZERO, offsets: B::OFFSETS, halves: B::HALVES }
}

#[derive(Clone, Copy)]
struct Call<'a> {
    level: Level,
    x: &'a [f32],
    weight: &'a Packed,
}

impl Call<'_> {
    fn with<B: Codes + Sync>(self) -> Vec<f32> {
        let Self { level, x, weight } = self;
        let inputs = weight.dims()[1];
        let rows = x.len() / inputs;
        assert_eq!(x.len(), rows * inputs, "x");
        let x = FixedPoint::new(level, x, inputs, meets::<B>(), blocks_of(MOST_ROWS, rows));
        let row_bytes = weight.row_bytes();
        in_tasks(rows, weight.bytes(), row_bytes, |columns, out| {
            let work = PackedIntegers::<B> { rows, x: &x, columns, row_bytes, out, kind: PhantomData };
            dispatch_integers(level, work);
        })
    }
}

struct PackedIntegers<'a, B> {
    rows: usize,
    x: &'a FixedPoint,
    /// `[columns, row_bytes]`.
    columns: &'a [u8],
    row_bytes: usize,
    /// `[rows, columns]`.
    out: &'a mut [f32],
    kind: PhantomData<B>,
}

impl<B: Codes> IntegerKernel for PackedIntegers<'_, B> {
    #[inline(always)]
    unsafe fn run<V: Integers>(mut self) {
        let columns = self.columns.len() / self.row_bytes;
        assert_eq!(self.out.len(), self.rows * columns, "room for the result");
        assert_eq!(self.x.groups(), (self.row_bytes / B::BYTES * B::RUNS).div_ceil(V::RUNS), "inputs");
        // SAFETY: the caller promises the instructions.
        let mut sums = unsafe { [[V::splat(0.0); WIDEST]; MOST_ROWS] };
        for first in (0..columns).step_by(V::N) {
            let mut row = 0;
            while row < self.rows {
                let block = row..row + block_of(MOST_ROWS, self.rows - row);
                let sums = &mut sums[..block.len()];
                // SAFETY: the caller promises the instructions; these rows and columns are there.
                unsafe {
                    match block.len() {
                        1 => self.columns::<V, 1, 2>(row, first, sums),
                        2 => self.columns::<V, 2, 1>(row, first, sums),
                        _ if V::N == WIDEST => self.columns::<V, MOST_ROWS, 2>(row, first, sums),
                        _ => self.columns::<V, MOST_ROWS, 1>(row, first, sums),
                    }
                }
                row = block.end;
                self.write(block, first, sums);
            }
        }
    }
}

impl<B: Codes> PackedIntegers<'_, B> {
    /// Runs that are taken at once: a block's, or a vector's of blocks of one run.
    const fn runs_of_step<V: Integers>() -> usize {
        if B::RUNS > V::RUNS { B::RUNS } else { V::RUNS }
    }

    /// R rows from `row` on times as many columns as a vector has lanes, or are left, from `first`
    /// on: a piece of the inputs of all of them after the other, so that the rows' piece stays in
    /// the nearest cache. The lanes of sums are still to be added up.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; the rows are there.
    #[inline(always)]
    unsafe fn columns<V: Integers, const R: usize, const C: usize>(
        &self,
        row: usize,
        first: usize,
        sums: &mut [[V; WIDEST]],
    ) {
        let (all, row_bytes) = (self.columns, self.row_bytes);
        let columns = all.len() / row_bytes;
        let width = V::N.min(columns - first);
        let runs = Self::runs_of_step::<V>();
        let step = runs / B::RUNS * B::BYTES;
        // One row is near whole: a column is read from one end to the other.
        let piece = if R == 1 { row_bytes } else { (NEAR / R / RUN / runs).max(1) * step };
        let ahead = AHEAD_BYTES.next_multiple_of(C * row_bytes);
        let sums: &mut [[V; WIDEST]; R] = sums.try_into().expect("R rows");
        // SAFETY: the caller promises the instructions.
        sums.fill(unsafe { [V::splat(0.0); WIDEST] });
        for from in (0..row_bytes).step_by(piece) {
            let bytes = from..row_bytes.min(from + piece);
            let x = self.x.of_block(row, R, from / step * (runs / V::RUNS)).as_ptr();
            for column in (0..width).step_by(C) {
                // A last column without a neighbour takes its own place.
                let piece = |column: usize| {
                    let place = (first + column.min(width - 1)) * row_bytes;
                    &all[place + bytes.start..place + bytes.end]
                };
                let pieces: [_; C] = std::array::from_fn(|next| piece(column + next));
                if R > 1 {
                    for piece in pieces {
                        prefetch_bytes::<V>(piece.as_ptr().wrapping_add(AHEAD * row_bytes), bytes.len());
                    }
                }
                // SAFETY: the caller's promises; there are the inputs of these blocks.
                unsafe { pieces_of::<V, B, R, C>(pieces, x, sums, column, ahead) }
            }
        }
    }

    /// Writes the sums of a block of rows and of a vector's columns from `first` on.
    #[inline(always)]
    fn write<V: Integers>(&mut self, rows: Range<usize>, first: usize, sums: &[[V; WIDEST]]) {
        let columns = self.columns.len() / self.row_bytes;
        let width = V::N.min(columns - first);
        for (row, sums) in rows.zip(sums) {
            let mut values = [0.0; WIDEST];
            // SAFETY: sums prove the instructions; WIDEST values are at least a vector.
            unsafe { V::sum_each(&sums[..V::N]).mul(V::splat(self.x.scales()[row])).store(values.as_mut_ptr()) };
            self.out[row * columns + first..][..width].copy_from_slice(&values[..width]);
        }
    }
}

/// Adds the products of R rows with some blocks of C columns to their sums.
///
/// # Safety
/// The machine has the instructions of `V`; `x` has the inputs of these blocks.
#[inline(always)]
unsafe fn pieces_of<V: Integers, B: Codes, const R: usize, const C: usize>(
    columns: [&[u8]; C],
    x: *const f32,
    sums: &mut [[V; WIDEST]; R],
    column: usize,
    ahead: usize,
) {
    let runs = PackedIntegers::<B>::runs_of_step::<V>();
    let (step, size) = (runs / B::RUNS * B::BYTES, meets::<B>().vectors() * V::N);
    let mut padded: [[u8; LONGEST]; C];
    let mut x = x;
    // SAFETY: the caller's promises. Blocks of one run that are no whole step are followed by
    // others of zeros there, which meet zeros.
    unsafe {
        let mut acc = [[V::splat(0.0); R]; C];
        for (c, acc) in acc.iter_mut().enumerate() {
            for (acc, sums) in acc.iter_mut().zip(&*sums) {
                *acc = sums[column + c];
            }
        }
        for from in (0..columns[0].len()).step_by(step) {
            let mut blocks = columns.map(|column| column.as_ptr().add(from));
            if from + step > columns[0].len() {
                padded = [[0; LONGEST]; C];
                for (c, block) in blocks.iter_mut().enumerate() {
                    padded[c][..columns[c].len() - from].copy_from_slice(&columns[c][from..]);
                    *block = padded[c].as_ptr();
                }
            }
            if R == 1 {
                for block in blocks {
                    prefetch_bytes::<V>(block.wrapping_add(ahead), step);
                }
            }
            for run in (0..runs).step_by(V::RUNS) {
                // Both columns meet a row's inputs while these are in registers.
                let (group, other) = (Group::<V>::of::<B>(blocks[0], run), Group::<V>::of::<B>(blocks[C - 1], run));
                for r in 0..R {
                    let x = x.add(r * size);
                    acc[0][r] = group.onto::<B>(acc[0][r], x);
                    if C == 2 {
                        acc[C - 1][r] = other.onto::<B>(acc[C - 1][r], x);
                    }
                }
                x = x.add(R * size);
            }
        }
        for (c, acc) in acc.into_iter().enumerate() {
            for (acc, sums) in acc.into_iter().zip(&mut *sums) {
                sums[column + c] = acc;
            }
        }
    }
}

/// Codes of a vector's runs, of the first halves and the second, and their scales and offsets.
#[derive(Clone, Copy)]
struct Group<V: Integers> {
    codes: [[V::Words; 2]; 2],
    scales: [[V; 2]; 2],
}

impl<V: Integers> Group<V> {
    /// # Safety
    /// The machine has the instructions of `V`; these blocks are there.
    #[inline(always)]
    unsafe fn of<B: Codes>(block: *const u8, run: usize) -> Self {
        // SAFETY: the caller's promises.
        unsafe {
            let [first, second] = B::codes::<V>(block, run);
            Self { codes: [V::widened(first), V::widened(second)], scales: B::scales::<V>(block, run) }
        }
    }

    /// `sum` and the products with one row's inputs.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; `x` has a group.
    #[inline(always)]
    unsafe fn onto<B: Codes>(self, sum: V, x: *const f32) -> V {
        let Self { codes, scales: [[scale, offset], [other_scale, other_offset]] } = self;
        // SAFETY: the caller's promises.
        unsafe {
            let (second, of_codes) = (x.add(SECOND * V::N), x.add(PAIRS * V::N));
            let sum = if B::OFFSETS { offset.mul_add(V::load(of_codes), sum) } else { sum };
            let first = dot::<V>(start::<V, B>(of_codes), x, codes[0]);
            if !B::HALVES {
                return V::floats(dot::<V>(first, second, codes[1])).mul_add(scale, sum);
            }
            let sum = if B::OFFSETS { other_offset.mul_add(V::load(of_codes.add(V::N)), sum) } else { sum };
            let second = V::floats(dot::<V>(start::<V, B>(of_codes.add(V::N)), second, codes[1]));
            second.mul_add(other_scale, V::floats(first).mul_add(scale, sum))
        }
    }
}

/// What sums of products begin with: those of the code of 0, or nothing.
///
/// # Safety
/// The machine has the instructions of `V`; `of_codes` is valid for `N` reads.
#[inline(always)]
unsafe fn start<V: Integers, B: Codes>(of_codes: *const f32) -> V::Sums {
    // SAFETY: the caller's promises.
    unsafe { if B::OFFSETS { V::nothing() } else { V::load_sums(of_codes.cast()) } }
}

/// `sums` and the products of half of the inputs of a group.
///
/// # Safety
/// The machine has the instructions of `V`; `x` has half of a group.
#[inline(always)]
unsafe fn dot<V: Integers>(sums: V::Sums, x: *const f32, [even, odd]: [V::Words; 2]) -> V::Sums {
    // SAFETY: the caller's promises.
    unsafe { V::dot(V::dot(sums, even, x.cast()), odd, x.add(V::N).cast()) }
}
