//! Matrix products of few rows: the weight is streamed once, in the type in which it is stored, and
//! widened in registers or multiplied in pairs of bf16. The sums are f32. Many rows are better
//! served by a product that packs the weight (`many_rows.rs`).

// Loops over register blocks count, so that they read like the products they are and unroll whole.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use half::bf16;

use super::lanes::{Lanes, WIDEST};
use super::level::{Kernel, Level, PairKernel, dispatch, dispatch_pairs};
use super::pack::Aligned;
use super::pairs::Pairs;
use super::stored::{Factor, Stored, Weights};
use super::tasks;

/// Number of rows whose sums are in registers at a time, where there are 32 registers; half as many
/// elsewhere.
const ROWS: usize = 8;
/// Distance in bytes at which the weight is prefetched where it is read as it stands: a read must
/// not wait for memory, and several rows keep the processor too busy to prefetch on its own.
const AHEAD_BYTES: usize = 1 << 14;
/// The same distance where one row or two meet a column after the other: the processor follows a
/// stream by itself, and a greater distance takes from it what it needs.
const STREAM_AHEAD_BYTES: usize = 1 << 11;
/// The same where one row meets several columns at a time.
const STREAMS_AHEAD_BYTES: usize = 1 << 10;
/// Inputs of all rows together that are taken before the next column: this number fits into the
/// nearest cache beside the weight.
const NEAR_INPUTS: usize = 1 << 13;
/// Bytes of one row or two up to which they meet one column after the other: the weight is one
/// stream then. Longer ones do not stay in the nearest cache, and several columns at a time read
/// them less often.
const ROWS_BYTES: usize = 12 << 10;
/// Bytes of the weight in a task, about: enough to pay for sharing it out.
const TASK_BYTES: usize = 1 << 17;

/// `x · weightᵀ`, `[rows, outputs]`: `x` `[rows, inputs]`, `weight` `[outputs, inputs]`. The bits
/// of a result do not depend on the number of threads.
pub(super) fn product<T: Stored>(level: Level, x: &[f32], weight: &[T], inputs: usize) -> Vec<f32> {
    let rows = x.len() / inputs;
    assert_eq!(x.len(), rows * inputs, "x");
    let turns = Turns::new(level, x, inputs);
    in_tasks(rows, weight, inputs, |weight, out| dispatch(level, FewRows { x, turns: &turns, weight, inputs, out }))
}

/// The same of pairs, `inputs` of them: `x` has one in the bits of each number.
pub(super) fn product_of_pairs(level: Level, x: &[f32], weight: &[[bf16; 2]], inputs: usize) -> Vec<f32> {
    let rows = x.len() / inputs;
    assert_eq!(x.len(), rows * inputs, "x");
    let turns = Turns::new(level, x, inputs);
    in_tasks(rows, weight, inputs, |weight, out| {
        dispatch_pairs(level, FewRows { x, turns: &turns, weight, inputs, out });
    })
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

/// Rows of which a vector's lanes take turns, block of rows after block. So these are read one
/// after the other, and rows that are a power of two apart do not take each other's places in the
/// nearest cache.
pub(super) struct Turns<'a> {
    /// Of one row, which is in that order.
    row: &'a [f32],
    /// `[blocks of rows, vectors, rows of a block, lanes]`, of more.
    rows: Option<Aligned>,
    /// Whole vectors' lanes of a row.
    whole: usize,
}

impl<'a> Turns<'a> {
    /// Those of `x` `[rows, inputs]`, in the blocks that [`in_blocks`] takes.
    pub(super) fn new(level: Level, x: &'a [f32], inputs: usize) -> Self {
        let lanes = level.lanes();
        Self::in_blocks(lanes, x, inputs, blocks(x.len() / inputs.max(1), most_rows(lanes)))
    }

    /// Those of `x` `[rows, inputs]` in blocks of rows, for vectors of so many lanes.
    pub(super) fn in_blocks(
        lanes: usize,
        x: &'a [f32],
        inputs: usize,
        blocks: impl Iterator<Item = Range<usize>>,
    ) -> Self {
        let rows = x.len() / inputs.max(1);
        let whole = inputs / lanes * lanes;
        let turns = (rows > 1 && whole > 0).then(|| {
            let mut turns = Aligned::new(rows * whole);
            for block in blocks {
                let to = &mut turns.get_mut()[block.start * whole..block.end * whole];
                for (row, x) in x[block.start * inputs..block.end * inputs].chunks_exact(inputs).enumerate() {
                    let places = to.chunks_exact_mut(block.len() * lanes).zip(x.chunks_exact(lanes));
                    places.for_each(|(to, x)| to[row * lanes..][..lanes].copy_from_slice(x));
                }
            }
            turns
        });
        Self { row: x, rows: turns, whole }
    }

    /// From input `from` on, a multiple of the lanes, of the block of `count` rows that begins with
    /// `row`.
    pub(super) fn of_block(&self, row: usize, count: usize, from: usize) -> &[f32] {
        match &self.rows {
            Some(rows) => &rows.get()[row * self.whole + from * count..(row + count) * self.whole],
            None => &self.row[from..self.whole],
        }
    }
}

/// Rows of a block at most: the widest vectors have 32 registers.
fn most_rows(lanes: usize) -> usize {
    if lanes == WIDEST { ROWS } else { ROWS / 2 }
}

/// Blocks of rows, `most` at most and alike.
fn blocks(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = rows.div_ceil(most);
    (0..count).map(move |block| block * rows / count..(block + 1) * rows / count)
}

/// The blocks in which rows meet a packed weight, of so many rows at most.
pub(super) fn blocks_of(most: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let first = from;
        from += if first < rows { block_of(most, rows - first) } else { 0 };
        (first < from).then_some(first..from)
    })
}

/// Rows of the next such block, where so many are left.
pub(super) fn block_of(most: usize, left: usize) -> usize {
    1 << left.clamp(1, most).ilog2()
}

struct FewRows<'a, T> {
    /// `[rows, inputs]`.
    x: &'a [f32],
    turns: &'a Turns<'a>,
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

    /// One row or two.
    ///
    /// # Safety
    /// As [`block`](Self::block).
    #[inline(always)]
    unsafe fn fewest<const R: usize>(&mut self, row: usize, at: usize) {
        // SAFETY: the caller's promises.
        unsafe { self.block::<R, 8>(row, at) }
    }
}

/// Does all rows, as many at a time as there are registers for. So are columns, that a row be read
/// less often than the weight.
///
/// # Safety
/// The machine has the instructions of `V`; the rows are there, and what `at` says is.
#[inline(always)]
pub(super) unsafe fn in_blocks<V: Lanes>(work: &mut impl InBlocks<V>, rows: usize, at: usize) {
    let wide = V::N == WIDEST;
    for Range { start: from, end } in blocks(rows, most_rows(V::N)) {
        let count = end - from;
        // SAFETY: the caller's promises.
        unsafe {
            match count {
                1 => work.fewest::<1>(from, at),
                2 if wide => work.fewest::<2>(from, at),
                3 if wide => work.block::<3, 4>(from, at),
                4 if wide => work.block::<4, 4>(from, at),
                5 if wide => work.block::<5, 4>(from, at),
                6 if wide => work.block::<6, 4>(from, at),
                7 if wide => work.block::<7, 3>(from, at),
                ROWS if wide => work.block::<ROWS, 3>(from, at),
                2 => work.block::<2, 4>(from, at),
                3 => work.block::<3, 2>(from, at),
                4 => work.block::<4, 2>(from, at),
                count => unreachable!("{count} rows of {rows}"),
            }
        }
    }
}

impl<V: Lanes, T: Weights<V>> InBlocks<V> for FewRows<'_, T> {
    #[inline(always)]
    unsafe fn fewest<const R: usize>(&mut self, row: usize, at: usize) {
        // SAFETY: the caller's promises.
        unsafe {
            match R * self.inputs * size_of::<f32>() {
                0..=ROWS_BYTES => InBlocks::<V>::block::<R, 1>(self, row, at),
                _ => InBlocks::<V>::block::<R, 8>(self, row, at),
            }
        }
    }

    /// As many columns as a vector has, or are left, from `first` on.
    #[inline(always)]
    unsafe fn block<const R: usize, const C: usize>(&mut self, row: usize, first: usize) {
        let (inputs, columns) = (self.inputs, self.weight.len() / self.inputs);
        let width = V::N.min(columns - first);
        let (x, turns) = (&self.x[row * inputs..(row + R) * inputs], self.turns.of_block(row, R, 0).as_ptr());
        let weight = &self.weight[first * inputs..(first + width) * inputs];
        let whole = inputs / V::N * V::N;
        let near = if whole * R > NEAR_INPUTS { NEAR_INPUTS / 2 } else { NEAR_INPUTS };
        let run = (near / R).next_multiple_of(V::N);
        // SAFETY: the caller promises the instructions.
        let mut sums = unsafe { [[V::splat(0.0); WIDEST]; R] };
        let bytes = match (R, C) {
            (1 | 2, 1) => STREAM_AHEAD_BYTES,
            (1, _) => STREAMS_AHEAD_BYTES,
            _ => AHEAD_BYTES,
        };
        let next = Ahead { inputs, width, run, bytes };
        for from in (0..whole).step_by(run) {
            let run = from..whole.min(from + run);
            // SAFETY: the caller promises the instructions; there are the turns of R rows, and
            // `width` columns of the weight.
            unsafe {
                for column in (0..width / C * C).step_by(C) {
                    let ahead = next.of(weight, column, from);
                    let weight = weight.as_ptr().add(column * inputs);
                    let factors = Factors { x: turns, weight: (weight, inputs), ahead };
                    dots::<V, T, R, C, true>(factors, run.clone(), &mut sums, column);
                }
                for column in width / C * C..width {
                    let ahead = next.of(weight, column, from);
                    let weight = weight.as_ptr().add(column * inputs);
                    let factors = Factors { x: turns, weight: (weight, inputs), ahead };
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

/// The order in which [`FewRows`] takes a weight: `width` columns, a run of inputs of all of them
/// after the other.
struct Ahead {
    inputs: usize,
    width: usize,
    run: usize,
    /// Distance to what follows in memory.
    bytes: usize,
}

impl Ahead {
    /// What is prefetched in place of input 0 while inputs `from` on of `column` are read: what
    /// follows in memory, where a run is a whole column or long; else the next run of the same
    /// column, or the first one of a column of the next group.
    fn of<T>(&self, weight: &[T], column: usize, from: usize) -> *const T {
        let Self { inputs, width, run, bytes } = *self;
        let of_weight = |column: usize| weight.as_ptr().wrapping_add(column * inputs);
        if run >= inputs || run * size_of::<T>() >= AHEAD_BYTES {
            of_weight(column).wrapping_byte_add(bytes)
        } else if from + run < inputs {
            of_weight(column).wrapping_add(run)
        } else {
            of_weight(column + width).wrapping_sub(from)
        }
    }
}

/// Rows and columns of a product.
pub(super) struct Factors<T> {
    /// The rows' [`Turns`].
    pub(super) x: *const f32,
    /// Where the first column is, and the numbers from one to the next.
    pub(super) weight: (*const T, usize),
    /// What is prefetched in place of the weight.
    pub(super) ahead: *const T,
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
    let Factors { x, weight: (weight, weight_step), ahead } = factors;
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
                let left = V::load(x.add(R * d + r * V::N));
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
