//! Matrix products of few rows: the weight is streamed once, in the type in which it is stored, and
//! widened in registers or multiplied in pairs of bf16. The sums are f32. Many rows are better
//! served by a product that packs the weight (`many_rows.rs`).

// Loops over register blocks count, so that they read like the products they are and unroll whole.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use half::bf16;

use super::lanes::{Lanes, Pairs};
use super::level::{Kernel, Level, PairKernel, dispatch, dispatch_pairs};
use super::stored::{Factor, Stored, Weights};
use super::strip::WIDEST;
use super::tasks;

/// Number of rows whose sums are in registers at a time, where there are 32 registers; half as many
/// elsewhere.
const ROWS: usize = 8;
/// Distance in bytes at which the weight is prefetched: a read must not wait for memory, and
/// several rows keep the processor too busy to prefetch on its own.
const AHEAD_BYTES: usize = 1 << 14;
/// Inputs of all rows together that are taken before the next column: this number fits into the
/// nearest cache beside the weight.
const NEAR_INPUTS: usize = 1 << 13;
/// Bytes of the weight in a task, about: enough to pay for sharing it out.
const TASK_BYTES: usize = 1 << 17;

/// `x · weightᵀ`, `[rows, outputs]`: `x` `[rows, inputs]`, `weight` `[outputs, inputs]`. The bits
/// of a result do not depend on the number of threads.
pub(super) fn product<T: Stored>(level: Level, x: &[f32], weight: &[T], inputs: usize) -> Vec<f32> {
    let rows = x.len() / inputs;
    assert_eq!(x.len(), rows * inputs, "x");
    in_tasks(rows, weight, inputs, |weight, out| dispatch(level, FewRows { x, weight, inputs, out }))
}

/// The same of pairs, `inputs` of them: `x` has one in the bits of each number.
pub(super) fn product_of_pairs(level: Level, x: &[f32], weight: &[[bf16; 2]], inputs: usize) -> Vec<f32> {
    let rows = x.len() / inputs;
    assert_eq!(x.len(), rows * inputs, "x");
    in_tasks(rows, weight, inputs, |weight, out| dispatch_pairs(level, FewRows { x, weight, inputs, out }))
}

/// `[rows, outputs]` of a weight of rows of `width` values, made of parts `[rows, columns]` that
/// `run` computes.
pub(super) fn in_tasks<T: Sync>(
    rows: usize,
    weight: &[T],
    width: usize,
    run: impl Fn(&[T], &mut [f32]) + Sync,
) -> Vec<f32> {
    let outputs = weight.len() / width;
    assert_eq!(weight.len(), outputs * width, "weight");
    let mut out = vec![0.0; rows * outputs];
    if rayon::current_num_threads() <= 1 {
        run(weight, &mut out);
        return out;
    }
    // A task's part is [rows, its columns], so that tasks share nothing.
    let columns = (TASK_BYTES / (width * size_of::<T>())).max(1).next_multiple_of(WIDEST);
    let mut parts = vec![0.0; rows * outputs];
    let tasks: Vec<_> = parts.chunks_mut(rows * columns).zip(weight.chunks(columns * width)).collect();
    tasks::run(tasks, || (), |(), (out, weight)| run(weight, out));
    for (index, part) in parts.chunks(rows * columns).enumerate() {
        let width = part.len() / rows;
        for (part, row) in part.chunks_exact(width).zip(out.chunks_exact_mut(outputs)) {
            row[index * columns..][..width].copy_from_slice(part);
        }
    }
    out
}

struct FewRows<'a, T> {
    /// `[rows, inputs]`.
    x: &'a [f32],
    /// `[columns, inputs]`.
    weight: &'a [T],
    inputs: usize,
    /// `[rows, columns]`.
    out: &'a mut [f32],
}

impl<T: Stored> Kernel for FewRows<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.all::<V>() }
    }
}

impl PairKernel for FewRows<'_, [bf16; 2]> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.all::<V>() }
    }
}

impl<T> FewRows<'_, T> {
    /// All columns.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn all<V: Lanes>(mut self)
    where
        T: Weights<V>,
    {
        let (rows, columns) = (self.x.len() / self.inputs, self.weight.len() / self.inputs);
        assert_eq!(self.out.len(), rows * columns, "room for the result");
        for first in (0..columns).step_by(V::N) {
            // SAFETY: the caller promises the instructions; these rows and this column are there.
            unsafe { in_blocks(&mut self, rows, first) }
        }
    }
}

/// Work on blocks of rows whose sums fit into registers.
pub(super) trait InBlocks<V> {
    /// R rows from `row` on, C columns at a time.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; the rows are there, and what `at` says is.
    unsafe fn block<const R: usize, const C: usize>(&mut self, row: usize, at: usize);
}

/// Does all rows, as many at a time as there are registers for. So are columns, that a row be read
/// less often than the weight.
///
/// # Safety
/// The machine has the instructions of `V`; the rows are there, and what `at` says is.
#[inline(always)]
pub(super) unsafe fn in_blocks<V: Lanes>(work: &mut impl InBlocks<V>, rows: usize, at: usize) {
    let wide = V::BLOCK >= 4; // 32 registers
    let parts = rows.div_ceil(if wide { ROWS } else { ROWS / 2 });
    for part in 0..parts {
        let from = part * rows / parts;
        let count = (part + 1) * rows / parts - from;
        // SAFETY: the caller's promises.
        unsafe {
            match count {
                1 => work.block::<1, 8>(from, at),
                2 if wide => work.block::<2, 8>(from, at),
                3 if wide => work.block::<3, 4>(from, at),
                4 if wide => work.block::<4, 4>(from, at),
                5 if wide => work.block::<5, 4>(from, at),
                6 if wide => work.block::<6, 4>(from, at),
                7 if wide => work.block::<7, 3>(from, at),
                ROWS if wide => work.block::<ROWS, 3>(from, at),
                2 => work.block::<2, 4>(from, at),
                3 => work.block::<3, 2>(from, at),
                4 => work.block::<4, 2>(from, at),
                count => unreachable!("{count} rows of {rows} in {parts} parts"),
            }
        }
    }
}

impl<V: Lanes, T: Weights<V>> InBlocks<V> for FewRows<'_, T> {
    /// As many columns as a vector has, or are left, from `first` on.
    #[inline(always)]
    unsafe fn block<const R: usize, const C: usize>(&mut self, row: usize, first: usize) {
        let (inputs, columns) = (self.inputs, self.weight.len() / self.inputs);
        let width = V::N.min(columns - first);
        let x = &self.x[row * inputs..(row + R) * inputs];
        let weight = &self.weight[first * inputs..(first + width) * inputs];
        let (whole, run) = (inputs / V::N * V::N, (NEAR_INPUTS / R).next_multiple_of(V::N));
        // SAFETY: the caller promises the instructions.
        let mut sums = unsafe { [[V::splat(0.0); WIDEST]; R] };
        for from in (0..whole).step_by(run) {
            let run = from..whole.min(from + run);
            // SAFETY: the caller promises the instructions; `x` has R rows of inputs, the weight
            // `width` of them.
            unsafe {
                for column in (0..width / C * C).step_by(C) {
                    let weight = weight.as_ptr().add(column * inputs);
                    let factors = Factors { x: (x.as_ptr(), inputs), weight: (weight, inputs) };
                    dots::<V, T, R, C, true>(factors, run.clone(), &mut sums, column);
                }
                for column in width / C * C..width {
                    let weight = weight.as_ptr().add(column * inputs);
                    let factors = Factors { x: (x.as_ptr(), inputs), weight: (weight, inputs) };
                    dots::<V, T, R, 1, true>(factors, run.clone(), &mut sums, column);
                }
            }
        }
        let rest = whole..inputs;
        for r in 0..R {
            let mut values = [0.0; WIDEST];
            // SAFETY: WIDEST values are at least a vector.
            unsafe { V::sum_each(&sums[r][..V::N]).store(values.as_mut_ptr()) };
            let x = &x[r * inputs..][rest.clone()];
            if !x.is_empty() {
                for (value, weight) in values.iter_mut().zip(weight.chunks_exact(inputs)) {
                    *value += x.iter().zip(&weight[rest.clone()]).map(|(x, weight)| weight.times(*x)).sum::<f32>();
                }
            }
            self.out[(row + r) * columns + first..][..width].copy_from_slice(&values[..width]);
        }
    }
}

/// Rows and columns of a product: where the first is, and the numbers from one to the next.
pub(super) struct Factors<T> {
    pub(super) x: (*const f32, usize),
    pub(super) weight: (*const T, usize),
}

/// Adds the products of R rows with C columns over a run of inputs, whole vectors, to
/// `sums[..][column..]`; the lanes of each are still to be added up.
///
/// # Safety
/// The machine has the instructions of `V`; the run is within each of R rows of `x` and of C
/// columns of the weight.
#[inline(always)]
pub(super) unsafe fn dots<V: Lanes, T: Weights<V>, const R: usize, const C: usize, const PREFETCH: bool>(
    factors: Factors<T>,
    run: Range<usize>,
    sums: &mut [[V; WIDEST]; R],
    column: usize,
) {
    let Factors { x: (x, x_step), weight: (weight, weight_step) } = factors;
    let ahead = weight.wrapping_byte_add(AHEAD_BYTES);
    // SAFETY: the caller's promises; d + N ≤ the end of the run, r < R, c < C.
    unsafe {
        let mut acc = [[V::splat(0.0); R]; C];
        for d in run.step_by(V::N) {
            // The weight is in registers and the rows take turns: so there are registers enough.
            let mut right = [V::splat(0.0); C];
            for c in 0..C {
                if PREFETCH {
                    V::prefetch(ahead.wrapping_add(c * weight_step + d));
                }
                right[c] = T::load(weight.add(c * weight_step + d));
            }
            for r in 0..R {
                let left = V::load(x.add(r * x_step + d));
                for c in 0..C {
                    acc[c][r] = T::Factor::multiply(left, right[c], acc[c][r]);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                sums[r][column + c] = sums[r][column + c].add(acc[c][r]);
            }
        }
    }
}
