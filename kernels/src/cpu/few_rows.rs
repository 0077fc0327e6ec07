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
    in_tasks(x, weight, inputs, |part| dispatch(level, part))
}

/// The same of pairs, `inputs` of them: `x` has one in the bits of each number.
pub(super) fn product_of_pairs(level: Level, x: &[f32], weight: &[[bf16; 2]], inputs: usize) -> Vec<f32> {
    in_tasks(x, weight, inputs, |part| dispatch_pairs(level, part))
}

fn in_tasks<T: Sync>(x: &[f32], weight: &[T], inputs: usize, run: impl Fn(FewRows<'_, T>) + Sync) -> Vec<f32> {
    let (rows, outputs) = (x.len() / inputs, weight.len() / inputs);
    assert_eq!(x.len(), rows * inputs, "x");
    assert_eq!(weight.len(), outputs * inputs, "weight");
    let mut out = vec![0.0; rows * outputs];
    if rayon::current_num_threads() <= 1 {
        run(FewRows { x, weight, inputs, out: &mut out });
        return out;
    }
    // A task's part is [rows, its columns], so that tasks share nothing.
    let columns = (TASK_BYTES / (inputs * size_of::<T>())).max(1).next_multiple_of(WIDEST);
    let mut parts = vec![0.0; rows * outputs];
    let tasks: Vec<_> = parts.chunks_mut(rows * columns).zip(weight.chunks(columns * inputs)).collect();
    tasks::run(tasks, || (), |(), (out, weight)| run(FewRows { x, weight, inputs, out }));
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
        let wide = V::BLOCK >= 4; // 32 registers
        let parts = rows.div_ceil(if wide { ROWS } else { ROWS / 2 });
        for first in (0..columns).step_by(V::N) {
            for part in 0..parts {
                let from = part * rows / parts;
                let count = (part + 1) * rows / parts - from;
                // As many columns at a time as there are registers for: so a row is read less often
                // than the weight.
                // SAFETY: the caller promises the instructions; rows `from..` and columns `first..`
                // are there.
                unsafe {
                    match count {
                        1 => self.block::<V, 1, 8>(from, first),
                        2 if wide => self.block::<V, 2, 8>(from, first),
                        3 if wide => self.block::<V, 3, 4>(from, first),
                        4 if wide => self.block::<V, 4, 4>(from, first),
                        5 if wide => self.block::<V, 5, 4>(from, first),
                        6 if wide => self.block::<V, 6, 4>(from, first),
                        7 if wide => self.block::<V, 7, 3>(from, first),
                        ROWS if wide => self.block::<V, ROWS, 3>(from, first),
                        2 => self.block::<V, 2, 4>(from, first),
                        3 => self.block::<V, 3, 2>(from, first),
                        4 => self.block::<V, 4, 2>(from, first),
                        count => unreachable!("{count} rows of {rows} in {parts} parts"),
                    }
                }
            }
        }
    }

    /// R rows from `row` on and as many columns as a vector has, or are left, from `first` on, C
    /// columns at a time.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; the rows and the first column are there.
    #[inline(always)]
    unsafe fn block<V: Lanes, const R: usize, const C: usize>(&mut self, row: usize, first: usize)
    where
        T: Weights<V>,
    {
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
                    let factors = Factors { x: x.as_ptr(), weight: weight.as_ptr().add(column * inputs), inputs };
                    dots::<V, T, R, C>(factors, run.clone(), &mut sums, column);
                }
                for column in width / C * C..width {
                    let factors = Factors { x: x.as_ptr(), weight: weight.as_ptr().add(column * inputs), inputs };
                    dots::<V, T, R, 1>(factors, run.clone(), &mut sums, column);
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

/// Rows and columns of a product, each of `inputs` numbers.
struct Factors<T> {
    x: *const f32,
    weight: *const T,
    inputs: usize,
}

/// Adds the products of R rows with C columns over a run of inputs, whole vectors, to
/// `sums[..][column..]`; the lanes of each are still to be added up.
///
/// # Safety
/// The machine has the instructions of `V`; `x` is valid for R × `inputs` reads, `weight` for C ×
/// `inputs`; the run is within it.
#[inline(always)]
unsafe fn dots<V: Lanes, T: Weights<V>, const R: usize, const C: usize>(
    factors: Factors<T>,
    run: Range<usize>,
    sums: &mut [[V; WIDEST]; R],
    column: usize,
) {
    let Factors { x, weight, inputs } = factors;
    let ahead = weight.wrapping_byte_add(AHEAD_BYTES);
    // SAFETY: the caller's promises; d + N ≤ the end of the run, r < R, c < C.
    unsafe {
        let mut acc = [[V::splat(0.0); R]; C];
        for d in run.step_by(V::N) {
            // The weight is in registers and the rows take turns: so there are registers enough.
            let mut right = [V::splat(0.0); C];
            for c in 0..C {
                V::prefetch(ahead.wrapping_add(c * inputs + d));
                right[c] = T::load(weight.add(c * inputs + d));
            }
            for r in 0..R {
                let left = V::load(x.add(r * inputs + d));
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
