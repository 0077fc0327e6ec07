//! Products of many rows: the weight is packed into panels of columns, as numbers in f32 or as
//! pairs of bf16, and six rows at a time pass them, or 32 rows of pairs in tile registers. Sums are
//! f32.

use std::ops::Range;

use half::bf16;

use super::blocks::unpack;
use super::fresh::{Fresh, written};
use super::gated::write_gated;
use super::lanes::{Lanes, STRIP, WIDEST, prefetch_bytes};
use super::level::{EitherKernel, Kernel, Level, PairKernel, dispatch, dispatch_either, dispatch_pairs};
use super::multiply::{Added, COLUMNS, Multiply};
use super::pack::Aligned;
use super::pairs::Pairs;
use super::stored::{Factor, Stored, Weights, pair};
use super::{amx, tasks};
use crate::gate::Gate;
use crate::{Packed, Packing};

/// Most panels of the weight that are packed at a time, and their size in lanes: packed weights are
/// no memory that is worth counting.
const PANELS: usize = 8;
const PACKED: usize = 1 << 18;
/// Numbers of a row of a packed weight that are unpacked at a time: whole blocks of every packing.
const UNPACKED: usize = 256;
/// Rows of a task: their inputs stay in the second cache. Whole strips, and whole blocks of tiles.
const TASK_ROWS: usize = 16 * STRIP;
/// Least pairs that a task rounds.
const ROUNDED: usize = 1 << 13;

/// Numbers rounded to pairs of neighbours, each in the bits of one f32.
pub(super) fn paired(level: Level, numbers: &[f32]) -> Aligned {
    paired_in(level, numbers, numbers.len() / 2)
}

/// The same in room for `lanes` pairs.
fn paired_in(level: Level, numbers: &[f32], lanes: usize) -> Aligned {
    let run = numbers.len().div_ceil(2 * rayon::current_num_threads()).next_multiple_of(WIDEST).max(ROUNDED);
    let write = |pairs: &mut Fresh| {
        let (pairs, rest) = pairs.split_at_mut(numbers.len() / 2);
        rest.iter_mut().for_each(|pair| _ = pair.write(0.0));
        let parts = pairs.chunks_mut(run).zip(numbers.chunks(2 * run)).collect();
        tasks::run(parts, || (), |(), (pairs, numbers)| dispatch_pairs(level, Round { numbers, pairs }))
    };
    // SAFETY: the kernel writes every pair of its part, unless the call is ended early.
    unsafe { Aligned::written(lanes, write) }
}

/// A weight `[outputs, inputs]` of products of many rows, which is packed a panel at a time. The
/// bits of a result depend on its own row and column alone.
pub(super) struct Weight<'a> {
    run: Run,
    outputs: usize,
    pack: Box<dyn Fn(Panel<'_>) + Sync + 'a>,
}

impl<'a> Weight<'a> {
    /// Numbers, with `inputs` of them a row.
    pub(super) fn of<T: Stored>(level: Level, weight: &'a [T], inputs: usize) -> Self {
        let pack = move |Panel { columns, panel, width }: Panel<'_>| {
            let weight = &weight[columns.start * inputs..columns.end * inputs];
            dispatch(level, Pack { weight, inputs, panel, width });
        };
        Self { run: Run::new(level, false, inputs), outputs: weight.len() / inputs, pack: Box::new(pack) }
    }

    /// Pairs, with `inputs` of them a row: numbers that they are multiplied by are rounded.
    pub(super) fn of_pairs(level: Level, weight: &'a [[bf16; 2]], inputs: usize) -> Self {
        let pack = move |Panel { columns, panel, width }: Panel<'_>| {
            let weight = &weight[columns.start * inputs..columns.end * inputs];
            dispatch_pairs(level, Pack { weight, inputs, panel, width });
        };
        Self { run: Run::new(level, true, inputs), outputs: weight.len() / inputs, pack: Box::new(pack) }
    }

    /// Packed numbers: they are unpacked where others are packed into panels, and rounded to pairs
    /// with those that they are multiplied by if `in_pairs`.
    pub(super) fn of_packed(level: Level, weight: &'a Packed, in_pairs: bool) -> Self {
        let ([outputs, inputs], packing, row) = (weight.dims(), weight.packing(), weight.row_bytes());
        let pack = move |Panel { columns, panel, width }: Panel<'_>| {
            let weight = &weight.bytes()[columns.start * row..columns.end * row];
            dispatch_either(level, in_pairs, PackBlocks { level, packing, weight, inputs, panel, width });
        };
        let run = Run::new(level, in_pairs, if in_pairs { inputs / 2 } else { inputs });
        Self { run, outputs, pack: Box::new(pack) }
    }

    /// `x · weightᵀ` and what is added, `[rows, outputs]`: `x` `[rows, inputs]`.
    pub(super) fn product(&self, x: &[f32], added: Added<'_>) -> Vec<f32> {
        self.run.of(x, &[self], Made::Sum(added))
    }
}

/// The gated activation of the products of `x` with two weights, their biases added,
/// `[rows, outputs]`: the products meet while they are in a cache. `None` where the weights are
/// multiplied in different ways.
pub(super) fn gated(x: &[f32], weights: [&Weight<'_>; 2], biases: [Option<&[f32]>; 2], by: Gate) -> Option<Vec<f32>> {
    let [gate, up] = weights;
    let are_alike = gate.run == up.run && gate.outputs == up.outputs;
    are_alike.then(|| gate.run.of(x, &weights, Made::Gated { biases, by }))
}

/// What is made of products.
#[derive(Clone, Copy)]
enum Made<'a> {
    /// One product and what is added to it.
    Sum(Added<'a>),
    /// The gated activation of two.
    Gated { biases: [Option<&'a [f32]>; 2], by: Gate },
}

/// A panel to be packed.
struct Panel<'a> {
    /// Its columns, which are rows of the weight.
    columns: Range<usize>,
    /// As of [`Pack`].
    panel: &'a mut [f32],
    width: usize,
}

/// How a product is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    level: Level,
    /// Whether lanes hold pairs.
    paired: bool,
    /// Lanes of a row.
    inputs: usize,
    /// Whether it is done in tile registers.
    in_tiles: bool,
}

impl Run {
    fn new(level: Level, paired: bool, inputs: usize) -> Self {
        Self { level, paired, inputs, in_tiles: paired && level.has_amx() && inputs.is_multiple_of(amx::SIDE) }
    }

    /// What is made of the rows of `x`; where lanes hold pairs they are rounded first, in room for
    /// whole blocks of rows.
    fn of(self, x: &[f32], weights: &[&Weight<'_>], made: Made<'_>) -> Vec<f32> {
        let rows = x.len() / (self.inputs * if self.paired { 2 } else { 1 });
        let pairs = self.paired.then(|| paired_in(self.level, x, rows.next_multiple_of(amx::BLOCK) * self.inputs));
        let x = pairs.as_ref().map_or(x, Aligned::get);
        // SAFETY: each task writes its rows' numbers of every run of columns.
        unsafe { written(rows * weights[0].outputs, |out| self.write(x, weights, made, out)) }
    }

    /// Writes that, unless the call is ended early. Whether it did.
    fn write(self, x: &[f32], weights: &[&Weight<'_>], made: Made<'_>, out: &mut Fresh) -> bool {
        let (inputs, outputs) = (self.inputs, weights[0].outputs);
        let rows = out.len() / outputs;
        assert!(out.len() == rows * outputs && x.len() >= rows * inputs, "room for the result");
        let panels = (PACKED / (inputs * COLUMNS)).clamp(weights.len(), PANELS) / weights.len();
        let most = outputs.div_ceil(COLUMNS).min(panels);
        let mut packed = Aligned::new(weights.len() * most * inputs * COLUMNS);
        let (height, width) = if self.in_tiles { (amx::BLOCK, amx::BLOCK) } else { (STRIP, COLUMNS) };
        let task_rows = rows.div_ceil(rayon::current_num_threads()).next_multiple_of(height).min(TASK_ROWS);
        for first in (0..outputs).step_by(panels * COLUMNS) {
            let columns = (outputs - first).min(panels * COLUMNS);
            let of_weight = columns.div_ceil(COLUMNS) * inputs * COLUMNS;
            let rooms = packed.get_mut().chunks_exact_mut(of_weight);
            let parts = weights.iter().zip(rooms).flat_map(|(weight, room)| {
                let starts = (first..first + columns).step_by(COLUMNS);
                starts.zip(room.chunks_exact_mut(inputs * COLUMNS)).map(move |(column, panel)| (weight, column, panel))
            });
            let pack = |(): &mut (), (weight, column, panel): (&&Weight<'_>, usize, &mut [f32])| {
                (weight.pack)(Panel { columns: column..(column + COLUMNS).min(first + columns), panel, width });
            };
            if !tasks::run(parts.collect(), || (), pack) {
                return false;
            }
            let columns = Columns { first, count: columns, outputs, packed: packed.get(), of_weight };
            let tasks = out.chunks_mut(task_rows * outputs).enumerate().collect();
            let multiply = |(): &mut (), (task, out): (usize, &mut Fresh)| {
                self.task(columns, made, &x[task * task_rows * inputs..], (task * task_rows, out));
            };
            if !tasks::run(tasks, || (), multiply) {
                return false;
            }
        }
        true
    }

    /// Writes some columns of a task's rows, the first of which is `row`.
    fn task(self, run: Columns<'_>, made: Made<'_>, x: &[f32], (row, out): (usize, &mut Fresh)) {
        let Columns { first, count, outputs, packed, of_weight } = run;
        let inputs = self.inputs;
        let (biases, by) = match made {
            Made::Sum(added) => {
                let (weight, added) = (&packed[..of_weight], added.from(row * outputs));
                return self.multiply(Multiply { x, weight, inputs, first, columns: count, outputs, added, out });
            }
            Made::Gated { biases, by } => (biases, by),
        };
        let product = |index: usize| {
            let weight = &packed[index * of_weight..][..of_weight];
            let added = Added { onto: None, bias: biases[index].map(|bias| &bias[first..]) };
            let write = |out: &mut Fresh| {
                self.multiply(Multiply { x, weight, inputs, first: 0, columns: count, outputs: count, added, out });
                true
            };
            // SAFETY: all of its columns are written.
            unsafe { written(out.len() / outputs * count, write) }
        };
        let (gate, up) = (product(0), product(1));
        let rows = gate.chunks_exact(count).zip(up.chunks_exact(count)).zip(out.chunks_exact_mut(outputs));
        for ((gate, up), out) in rows {
            write_gated(self.level, [gate, up], by, &mut out[first..first + count]);
        }
    }

    fn multiply(self, part: Multiply<'_>) {
        // SAFETY: nothing that a task of a product calls has registers.
        match self.in_tiles.then(|| unsafe { self.level.registers() }).flatten() {
            Some(registers) => part.in_tiles(&registers),
            None => dispatch_either(self.level, self.paired, part),
        }
    }
}

/// A run of a result's columns, whose weights are packed.
#[derive(Clone, Copy)]
struct Columns<'a> {
    first: usize,
    count: usize,
    /// Of the result.
    outputs: usize,
    /// One weight after the other, `of_weight` lanes each.
    packed: &'a [f32],
    of_weight: usize,
}

/// Rounds numbers to pairs; an odd last one is left out.
struct Round<'a> {
    numbers: &'a [f32],
    pairs: &'a mut Fresh,
}

impl PairKernel for Round<'_> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(self) {
        let (mut to, mut from) = (self.pairs.chunks_exact_mut(V::N), self.numbers.chunks_exact(2 * V::N));
        for (to, from) in to.by_ref().zip(from.by_ref()) {
            // SAFETY: the caller promises the instructions; there are N pairs and 2 · N numbers.
            unsafe { V::load_paired(from.as_ptr()).store(to.as_mut_ptr().cast()) }
        }
        let (rest, _) = from.remainder().as_chunks::<2>();
        for (to, &[first, second]) in to.into_remainder().iter_mut().zip(rest) {
            to.write(pair(first, second));
        }
    }
}

/// Packs up to [`COLUMNS`] rows of a weight into a panel.
struct Pack<'a, T> {
    /// `[columns, inputs]`.
    weight: &'a [T],
    inputs: usize,
    /// `[COLUMNS / width, inputs, width]`; what stands in columns that are missing does not count
    /// later.
    panel: &'a mut [f32],
    /// Columns beside each other: [`COLUMNS`], or those of a block of tiles.
    width: usize,
}

/// Place of a lane of a column in a panel.
#[inline(always)]
fn place(inputs: usize, width: usize, input: usize, column: usize) -> usize {
    (column / width * inputs + input) * width + column % width
}

impl<T: Stored> Kernel for Pack<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.all::<V>() }
    }
}

impl PairKernel for Pack<'_, [bf16; 2]> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.all::<V>() }
    }
}

impl<T> Pack<'_, T> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn all<V: Lanes>(self)
    where
        T: Weights<V>,
    {
        let Self { weight, inputs, panel, width } = self;
        let columns = weight.len() / inputs;
        assert_eq!(weight.len(), columns * inputs, "weight");
        assert_eq!(panel.len(), inputs * COLUMNS, "room for a panel");
        let (whole_columns, whole_inputs) = (columns / V::N * V::N, inputs / V::N * V::N);
        let mut block = [0.0; WIDEST * WIDEST];
        for column in (0..whole_columns).step_by(V::N) {
            for input in (0..whole_inputs).step_by(V::N) {
                // SAFETY: the caller promises the instructions; there are V::N columns and inputs
                // from here on, on both sides, and room for them in the block; `width` is a
                // multiple of V::N.
                unsafe {
                    let from = weight.as_ptr().add(column * inputs + input);
                    for i in 0..V::N {
                        T::load(from.add(i * inputs)).store(block.as_mut_ptr().add(i * V::N));
                    }
                    let to = panel.as_mut_ptr().add(place(inputs, width, input, column));
                    V::transpose(block.as_ptr(), V::N, to, width);
                }
            }
        }
        for (column, weight) in weight.chunks_exact(inputs).enumerate() {
            let from = if column < whole_columns { whole_inputs } else { 0 };
            for (input, value) in weight.iter().enumerate().skip(from) {
                panel[place(inputs, width, input, column)] = value.lane();
            }
        }
    }
}

/// Packs up to [`COLUMNS`] rows of a packed weight into a panel.
struct PackBlocks<'a> {
    level: Level,
    packing: Packing,
    /// `[columns, blocks]`.
    weight: &'a [u8],
    /// Numbers of a row.
    inputs: usize,
    /// As of [`Pack`].
    panel: &'a mut [f32],
    width: usize,
}

impl EitherKernel for PackBlocks<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, F: Factor<V>>(self) {
        let Self { level, packing, weight, inputs, panel, width } = self;
        let row_bytes = inputs / packing.numbers() * packing.bytes();
        assert_eq!(panel.len(), inputs / F::NUMBERS * COLUMNS, "room for a panel");
        let mut room = [0.0; WIDEST * UNPACKED];
        for (group, rows) in weight.chunks(row_bytes * V::N).enumerate() {
            for from in (0..inputs).step_by(UNPACKED) {
                let count = UNPACKED.min(inputs - from);
                let blocks = from / packing.numbers()..(from + count) / packing.numbers();
                let bytes = blocks.start * packing.bytes()..blocks.end * packing.bytes();
                for (row, to) in rows.chunks_exact(row_bytes).zip(room.chunks_exact_mut(UNPACKED)) {
                    // The same row's next piece.
                    prefetch_bytes::<V>(row.as_ptr().wrapping_add(bytes.end), bytes.len());
                    unpack(level, packing, &row[bytes.clone()], &mut to[..count]);
                    // SAFETY: the caller promises the instructions; blocks have an even number of
                    // vectors.
                    unsafe { F::pack(to.as_mut_ptr(), count) }
                }
                for lane in (0..count / F::NUMBERS).step_by(V::N) {
                    let to = place(inputs / F::NUMBERS, width, from / F::NUMBERS + lane, group * V::N);
                    // SAFETY: the caller promises the instructions. The room has rows of UNPACKED
                    // numbers, the panel V::N lanes from here on, and V::N columns, which divides
                    // `width`.
                    unsafe {
                        let to = panel[to..].as_mut_ptr();
                        V::transpose(room.as_ptr().add(lane), UNPACKED, to, width);
                    }
                }
            }
        }
    }
}
