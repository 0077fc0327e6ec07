//! Matrix products of few rows with a packed weight: its columns are unpacked piece by piece, into
//! memory that stays in the nearest cache, and multiplied from there. Where there are vectors, one
//! row is multiplied by each of numbers as it is unpacked, with the same bits. Sums are f32.

use std::marker::PhantomData;

use rayon::prelude::*;

use super::block::{Block, Sink};
use super::blocks::{OnBlocks, unpack, with_blocks};
use super::few_rows::{Factors, InBlocks, Turns, dots, in_blocks, in_tasks};
use super::lanes::{Lanes, WIDEST, prefetch_bytes};
use super::level::{Kernel, Level, dispatch, dispatch_vectors};
use super::pack::Aligned;
use crate::{Packed, Packing};

/// Numbers of a column that are unpacked at a time: whole blocks of every packing.
const PIECE: usize = 256;
/// Columns that one row meets by turns: more are read from memory more slowly.
const TOGETHER: usize = 4;
/// Numbers of a run at most that one row multiplies as they are unpacked. With longer ones that is
/// a twentieth to an eighth faster, in code that is several times as long.
const MOST_RUN: usize = 64;

/// `x · weightᵀ`, `[rows, outputs]`: `x` `[rows, inputs]`. The bits of a result do not depend on
/// the number of threads.
pub(super) fn product(level: Level, x: &[f32], weight: &Packed) -> Vec<f32> {
    let inputs = weight.dims()[1];
    let rows = x.len() / inputs;
    assert_eq!(x.len(), rows * inputs, "x");
    if rows == 1 {
        return in_tasks(rows, weight.bytes(), weight.row_bytes(), |columns, out| {
            with_blocks(weight.packing(), OneRow { level, x, weight, columns, out });
        });
    }
    let turns = Turns::new(level, x, inputs);
    in_tasks(rows, weight.bytes(), weight.row_bytes(), |columns, out| {
        dispatch(level, PackedRows { level, rows, turns: &turns, weight, columns, out });
    })
}

/// Writes the numbers of whole blocks.
pub(crate) fn unpack_all(packing: Packing, blocks: &[u8], to: &mut [f32]) {
    const AT_ONCE: usize = 64;
    let level = Level::best();
    let of_some = to.par_chunks_mut(AT_ONCE * packing.numbers()).zip(blocks.par_chunks(AT_ONCE * packing.bytes()));
    of_some.for_each(|(to, blocks)| unpack(level, packing, blocks, to));
}

/// One row and some columns.
struct OneRow<'a> {
    level: Level,
    /// `[inputs]`.
    x: &'a [f32],
    weight: &'a Packed,
    /// `[columns, blocks]` of the weight.
    columns: &'a [u8],
    /// `[columns]`.
    out: &'a mut [f32],
}

impl OnBlocks for OneRow<'_> {
    fn run<B: Block>(self) {
        if B::RUN <= MOST_RUN && self.level.has_vectors() {
            dispatch_vectors(self.level, RowOfBlocks::<B> { row: self, kind: PhantomData });
        } else {
            let Self { level, x, weight, columns, out } = self;
            let turns = &Turns::new(level, x, x.len());
            dispatch(level, PackedRows { level, rows: 1, turns, weight, columns, out });
        }
    }
}

struct RowOfBlocks<'a, B> {
    row: OneRow<'a>,
    kind: PhantomData<B>,
}

/// The inputs that a run of numbers meets, and the sum of their products.
struct Times<V> {
    /// As many as the run has.
    x: *const f32,
    sum: V,
}

impl<V: Lanes> Sink<V> for Times<V> {
    #[inline(always)]
    unsafe fn take(&mut self, at: usize, numbers: V) {
        // SAFETY: the caller's promises: there are as many inputs as a run has numbers.
        self.sum = unsafe { V::load(self.x.add(at)) }.mul_add(numbers, self.sum);
    }
}

impl<B: Block> Kernel for RowOfBlocks<'_, B> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let OneRow { x, columns, out, .. } = self.row;
        let row_bytes = x.len() / B::NUMBERS * B::BYTES;
        assert_eq!(columns.len(), out.len() * row_bytes, "columns");
        // SAFETY: the caller promises the instructions.
        let zero = unsafe { V::splat(0.0) };
        for (columns, out) in columns.chunks(row_bytes * V::N).zip(out.chunks_mut(V::N)) {
            let mut sums = [zero; WIDEST];
            for (piece, x) in x.chunks(PIECE).enumerate() {
                let (mut parts, start) = ([zero; WIDEST], piece * PIECE / B::NUMBERS * B::BYTES);
                let bytes = x.len() / B::NUMBERS * B::BYTES;
                for (columns, parts) in columns.chunks(row_bytes * TOGETHER).zip(parts.chunks_mut(TOGETHER)) {
                    for column in columns.chunks_exact(row_bytes) {
                        let ahead = column.as_ptr().wrapping_add(row_bytes * V::N + start);
                        prefetch_bytes::<V>(ahead, bytes);
                    }
                    // Columns take turns: the sum of each waits for itself alone.
                    let mut from = start;
                    for x in x.chunks_exact(B::NUMBERS) {
                        for (run, x) in x.chunks_exact(B::RUN).enumerate() {
                            for (column, part) in columns.chunks_exact(row_bytes).zip(&mut *parts) {
                                let mut times = Times { x: x.as_ptr(), sum: *part };
                                // SAFETY: the caller promises the instructions; there are a block's
                                // bytes, and a run's numbers of inputs.
                                unsafe { B::unpack(&column[from..from + B::BYTES], run, &mut times) }
                                *part = times.sum;
                            }
                        }
                        from += B::BYTES;
                    }
                }
                for (sum, part) in sums.iter_mut().zip(parts) {
                    *sum = sum.add(part);
                }
            }
            let mut values = [0.0; WIDEST];
            // SAFETY: WIDEST values are at least a vector.
            unsafe { V::sum_each(&sums[..V::N]).store(values.as_mut_ptr()) };
            out.copy_from_slice(&values[..out.len()]);
        }
    }
}

struct PackedRows<'a> {
    level: Level,
    rows: usize,
    turns: &'a Turns<'a>,
    weight: &'a Packed,
    /// `[columns, blocks]` of the weight.
    columns: &'a [u8],
    /// `[rows, columns]`.
    out: &'a mut [f32],
}

impl Kernel for PackedRows<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Self { level, rows, turns, weight, columns, out } = self;
        let ([_, inputs], packing, row_bytes) = (weight.dims(), weight.packing(), weight.row_bytes());
        let outputs = columns.len() / row_bytes;
        assert_eq!(out.len(), rows * outputs, "room for the result");
        let mut unpacked = Aligned::new(WIDEST * PIECE);
        // SAFETY: the caller promises the instructions.
        let zero = unsafe { V::splat(0.0) };
        let mut sums = vec![[zero; WIDEST]; rows];
        for (group, columns) in columns.chunks(row_bytes * V::N).enumerate() {
            let (first, width) = (group * V::N, columns.len() / row_bytes);
            sums.fill([zero; WIDEST]);
            for from in (0..inputs).step_by(PIECE) {
                let count = PIECE.min(inputs - from);
                let bytes =
                    from / packing.numbers() * packing.bytes()..(from + count) / packing.numbers() * packing.bytes();
                for (column, to) in columns.chunks_exact(row_bytes).zip(unpacked.get_mut().chunks_exact_mut(PIECE)) {
                    // The same piece of the next columns: a stream would be of one column's bytes.
                    prefetch_bytes::<V>(column.as_ptr().wrapping_add(row_bytes * V::N + bytes.start), bytes.len());
                    unpack(level, packing, &column[bytes.clone()], &mut to[..count]);
                }
                let mut piece = Piece { turns, from, unpacked: unpacked.get(), width, sums: &mut sums };
                // SAFETY: the caller promises the instructions; there are `count` more inputs of
                // each row, whole vectors, and the columns are there.
                unsafe { in_blocks::<V>(&mut piece, rows, count) }
            }
            for (sums, out) in sums.iter().zip(out.chunks_exact_mut(outputs)) {
                let mut values = [0.0; WIDEST];
                // SAFETY: WIDEST values are at least a vector.
                unsafe { V::sum_each(&sums[..V::N]).store(values.as_mut_ptr()) };
                out[first..first + width].copy_from_slice(&values[..width]);
            }
        }
    }
}

/// Some inputs of all rows, and of some columns, unpacked.
struct Piece<'a, V> {
    turns: &'a Turns<'a>,
    /// The first of these inputs.
    from: usize,
    /// `[width, PIECE]`.
    unpacked: &'a [f32],
    width: usize,
    /// The sums of each row and column, their lanes still to be added up.
    sums: &'a mut [[V; WIDEST]],
}

impl<V: Lanes> InBlocks<V> for Piece<'_, V> {
    /// `count` inputs.
    #[inline(always)]
    unsafe fn block<const R: usize, const C: usize>(&mut self, row: usize, count: usize) {
        let Self { turns, from, unpacked, width, .. } = *self;
        let x = turns.of_block(row, R, from)[..R * count].as_ptr();
        let sums: &mut [[V; WIDEST]; R] = (&mut self.sums[row..row + R]).try_into().expect("R rows");
        // SAFETY: the caller promises the instructions; `x` has these inputs of R rows, and PIECE
        // numbers of each column are there.
        unsafe {
            for column in (0..width / C * C).step_by(C) {
                let weight = unpacked.as_ptr().add(column * PIECE);
                let factors = Factors { x, weight: (weight, PIECE), ahead: weight };
                dots::<V, f32, R, C, false>(factors, 0..count, sums, column);
            }
            for column in width / C * C..width {
                let weight = unpacked.as_ptr().add(column * PIECE);
                let factors = Factors { x, weight: (weight, PIECE), ahead: weight };
                dots::<V, f32, R, 1, false>(factors, 0..count, sums, column);
            }
        }
    }
}
