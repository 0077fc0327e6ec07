//! Products of many rows: the weight is packed into panels of columns, as numbers in f32 or as
//! pairs of bf16, and six rows at a time pass them, or 32 rows of pairs in tile registers. Sums are
//! f32.

use std::ops::Range;

use half::bf16;

use super::amx::Registers;
use super::blocks::unpack;
use super::lanes::{Lanes, Pairs, STRIP};
use super::level::{EitherKernel, Kernel, Level, PairKernel, dispatch, dispatch_either, dispatch_pairs};
use super::pack::Aligned;
use super::stored::{Factor, Stored, Weights, pair};
use super::strip::WIDEST;
use super::{amx, micro, tasks};
use crate::{Packed, Packing};

/// Columns of a packed panel of the weight: with AVX-512, as many as the sums of six rows leave
/// registers for.
const COLUMNS: usize = 64;
/// Inputs, or pairs of them, that are summed at a time: those of a strip stay in the nearest cache,
/// those of a panel in the second.
const DEPTH: usize = 256;
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
    let mut pairs = Aligned::new(lanes);
    let run = numbers.len().div_ceil(2 * rayon::current_num_threads()).next_multiple_of(WIDEST).max(ROUNDED);
    let parts = pairs.get_mut()[..numbers.len() / 2].chunks_mut(run).zip(numbers.chunks(2 * run)).collect();
    tasks::run(parts, || (), |(), (pairs, numbers)| dispatch_pairs(level, Round { numbers, pairs }));
    pairs
}

/// Adds `x · weightᵀ` to `out` `[rows, outputs]`, or writes it there: `x` `[rows, inputs]`,
/// `weight` `[outputs, inputs]`. The bits of a result depend on its own row and column alone.
pub(super) fn product<T: Stored>(level: Level, x: &[f32], weight: &[T], inputs: usize, target: Target<'_>) {
    let pack = |Panel { columns, panel, width }: Panel<'_>| {
        let weight = &weight[columns.start * inputs..columns.end * inputs];
        dispatch(level, Pack { weight, inputs, panel, width });
    };
    Run::new(level, false, inputs).all(x, weight.len() / inputs, &pack, target);
}

/// The same of a packed weight, its rows of `row_bytes` bytes: its numbers are unpacked where
/// others are packed into panels, and rounded to pairs with `x` if `in_pairs`.
pub(super) fn product_of_packed(level: Level, x: &[f32], weight: &Packed, in_pairs: bool, target: Target<'_>) {
    let ([outputs, inputs], packing, row) = (weight.dims(), weight.packing(), weight.row_bytes());
    let pack = |Panel { columns, panel, width }: Panel<'_>| {
        let weight = &weight.bytes()[columns.start * row..columns.end * row];
        dispatch_either(level, in_pairs, PackBlocks { level, packing, weight, inputs, panel, width });
    };
    match in_pairs {
        false => Run::new(level, false, inputs).all(x, outputs, &pack, target),
        true => Run::new(level, true, inputs / 2).of_rounded(x, outputs, &pack, target),
    }
}

/// The same of a weight in pairs, `inputs` of them; `x` `[rows, 2 · inputs]` is rounded.
pub(super) fn product_of_pairs(level: Level, x: &[f32], weight: &[[bf16; 2]], inputs: usize, target: Target<'_>) {
    let pack = |Panel { columns, panel, width }: Panel<'_>| {
        let weight = &weight[columns.start * inputs..columns.end * inputs];
        dispatch_pairs(level, Pack { weight, inputs, panel, width });
    };
    Run::new(level, true, inputs).of_rounded(x, weight.len() / inputs, &pack, target);
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
#[derive(Clone, Copy)]
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

    /// The product with numbers that are rounded to pairs first, in room for whole blocks of rows.
    fn of_rounded(self, x: &[f32], outputs: usize, pack: &(dyn Fn(Panel<'_>) + Sync), target: Target<'_>) {
        let rows = (x.len() / (2 * self.inputs)).next_multiple_of(amx::BLOCK);
        self.all(paired_in(self.level, x, rows * self.inputs).get(), outputs, pack, target);
    }

    /// The product with a weight of `outputs` rows. More rows than the result's may stand in `x`.
    fn all(self, x: &[f32], outputs: usize, pack: &(dyn Fn(Panel<'_>) + Sync), target: Target<'_>) {
        let (Self { inputs, .. }, Target { out, accumulate }) = (self, target);
        let rows = out.len() / outputs;
        assert!(out.len() == rows * outputs && x.len() >= rows * inputs, "room for the result");
        let panels = (PACKED / (inputs * COLUMNS)).clamp(1, PANELS);
        let mut packed = Aligned::new(outputs.div_ceil(COLUMNS).min(panels) * inputs * COLUMNS);
        let (height, width) = if self.in_tiles { (amx::BLOCK, amx::BLOCK) } else { (STRIP, COLUMNS) };
        let task_rows = rows.div_ceil(rayon::current_num_threads()).next_multiple_of(height).min(TASK_ROWS);
        for first in (0..outputs).step_by(panels * COLUMNS) {
            let columns = (outputs - first).min(panels * COLUMNS);
            let room = packed.get_mut().chunks_exact_mut(inputs * COLUMNS);
            let parts = (first..first + columns).step_by(COLUMNS).zip(room).collect();
            let pack = |(): &mut (), (column, panel): (usize, &mut [f32])| {
                pack(Panel { columns: column..(column + COLUMNS).min(first + columns), panel, width });
            };
            if !tasks::run(parts, || (), pack) {
                return;
            }
            let weight = &packed.get()[..columns.div_ceil(COLUMNS) * inputs * COLUMNS];
            let of_task = |(task, out)| (&x[task * task_rows * inputs..], out);
            let rows = out.chunks_mut(task_rows * outputs).enumerate().map(of_task).collect();
            let multiply = |_: &mut (), (x, out): (&[f32], &mut [f32])| {
                self.multiply(Multiply { x, weight, inputs, first, columns, outputs, out, accumulate });
            };
            if !tasks::run(rows, || (), multiply) {
                return;
            }
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

/// Where a product goes.
pub(super) struct Target<'a> {
    /// `[rows, outputs]`.
    pub(super) out: &'a mut [f32],
    /// Whether it is added to what stands there.
    pub(super) accumulate: bool,
}

/// Rounds numbers to pairs; an odd last one is left out.
struct Round<'a> {
    numbers: &'a [f32],
    pairs: &'a mut [f32],
}

impl PairKernel for Round<'_> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(self) {
        let (mut to, mut from) = (self.pairs.chunks_exact_mut(V::N), self.numbers.chunks_exact(2 * V::N));
        for (to, from) in to.by_ref().zip(from.by_ref()) {
            // SAFETY: the caller promises the instructions; there are N pairs and 2 · N numbers.
            unsafe { V::load_paired(from.as_ptr()).store(to.as_mut_ptr()) }
        }
        let (rest, _) = from.remainder().as_chunks::<2>();
        for (to, &[first, second]) in to.into_remainder().iter_mut().zip(rest) {
            *to = pair(first, second);
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

/// Some rows times some packed columns.
struct Multiply<'a> {
    /// `[rows, inputs]`, and what follows.
    x: &'a [f32],
    /// `[panels, inputs, COLUMNS]`, of blocks of tiles `[2 · panels, inputs, BLOCK]`.
    weight: &'a [f32],
    inputs: usize,
    /// First and number of the columns that are written.
    first: usize,
    columns: usize,
    /// `[rows, outputs]`.
    outputs: usize,
    out: &'a mut [f32],
    accumulate: bool,
}

impl EitherKernel for Multiply<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, F: Factor<V>>(mut self) {
        let rows = self.out.len() / self.outputs;
        assert!(self.x.len() >= rows * self.inputs, "rows of x");
        assert!(self.first + self.columns <= self.outputs, "columns");
        assert!(self.weight.len() >= self.columns.div_ceil(COLUMNS) * self.inputs * COLUMNS, "packed weight");
        for from in (0..self.inputs).step_by(DEPTH) {
            for panel in 0..self.columns.div_ceil(COLUMNS) {
                for row in (0..rows).step_by(STRIP) {
                    // SAFETY: the caller promises the instructions; rows, panel and inputs are
                    // there.
                    unsafe {
                        match rows - row {
                            1 => self.strip::<V, F, 1>(row, panel, from),
                            2 => self.strip::<V, F, 2>(row, panel, from),
                            3 => self.strip::<V, F, 3>(row, panel, from),
                            4 => self.strip::<V, F, 4>(row, panel, from),
                            5 => self.strip::<V, F, 5>(row, panel, from),
                            _ => self.strip::<V, F, STRIP>(row, panel, from),
                        }
                    }
                }
            }
        }
    }
}

impl Multiply<'_> {
    /// ROWS rows from `row` on times a panel, over the inputs `from ..`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; rows, panel and the first input are there.
    #[inline(always)]
    unsafe fn strip<V: Lanes, F: Factor<V>, const ROWS: usize>(&mut self, row: usize, panel: usize, from: usize) {
        let columns = COLUMNS.min(self.columns - panel * COLUMNS);
        for column in (0..columns).step_by(V::BLOCK * V::N) {
            let at = Place { row, panel, from, column, count: (columns - column).min(V::BLOCK * V::N) };
            // SAFETY: the caller's promises; `column` goes in steps of the block's width, which
            // divides COLUMNS.
            unsafe {
                match V::BLOCK {
                    1 => self.block::<V, F, ROWS, 1>(at),
                    2 => self.block::<V, F, ROWS, 2>(at),
                    _ => self.block::<V, F, ROWS, 4>(at),
                }
            }
        }
    }

    /// ROWS rows times WIDTH vectors of columns, of which `count` are there.
    ///
    /// # Safety
    /// As [`strip`](Self::strip), for the columns of the panel from `column` on.
    #[inline(always)]
    unsafe fn block<V: Lanes, F: Factor<V>, const ROWS: usize, const WIDTH: usize>(&mut self, at: Place) {
        let Place { row, panel, from, column, count } = at;
        let (inputs, outputs) = (self.inputs, self.outputs);
        let depth = DEPTH.min(inputs - from);
        let first = row * outputs + self.first + panel * COLUMNS + column;
        let whole = count == WIDTH * V::N;
        // SAFETY: the caller's promises. The room has ROWS rows of WIDTH vectors, as a block has;
        // if it is not whole, `count` numbers of each row are copied between the room and the
        // result.
        unsafe {
            let mut room = [[0.0; COLUMNS]; ROWS];
            let mut acc = [[V::splat(0.0); WIDTH]; ROWS];
            if from > 0 || self.accumulate {
                for (r, acc) in acc.iter_mut().enumerate() {
                    let result = &self.out[first + r * outputs..][..count];
                    let mut there = result.as_ptr();
                    if !whole {
                        room[r][..count].copy_from_slice(result);
                        there = room[r].as_ptr();
                    }
                    for (i, acc) in acc.iter_mut().enumerate() {
                        *acc = V::load(there.add(i * V::N));
                    }
                }
            }
            let x = self.x[row * inputs + from..][..(ROWS - 1) * inputs + depth].as_ptr();
            let weight = self.weight[(panel * inputs + from) * COLUMNS + column..].as_ptr();
            micro::product::<V, F, ROWS, WIDTH>(&mut acc, (x, inputs, 1), (weight, COLUMNS), depth);
            for (r, acc) in acc.iter().enumerate() {
                let result = &mut self.out[first + r * outputs..][..count];
                let to = if whole { result.as_mut_ptr() } else { room[r].as_mut_ptr() };
                for (i, acc) in acc.iter().enumerate() {
                    acc.store(to.add(i * V::N));
                }
                if !whole {
                    result.copy_from_slice(&room[r][..count]);
                }
            }
        }
    }
}

impl Multiply<'_> {
    /// The same in tiles: `x` has room for whole blocks of rows, and `inputs` are whole tiles.
    fn in_tiles(mut self, registers: &Registers) {
        let rows = self.out.len() / self.outputs;
        assert!(self.x.len() >= rows.next_multiple_of(amx::BLOCK) * self.inputs, "rows of x");
        assert!(self.first + self.columns <= self.outputs, "columns");
        assert!(self.weight.len() >= self.columns.div_ceil(COLUMNS) * self.inputs * COLUMNS, "packed weight");
        for from in (0..self.inputs).step_by(DEPTH) {
            for row in (0..rows).step_by(amx::BLOCK) {
                for column in (0..self.columns).step_by(amx::BLOCK) {
                    self.tile_block(registers, [row, from, column]);
                }
            }
        }
    }

    /// A block of the result, from its first row, input and column on. Where it is not whole, it is
    /// made in a room of its own.
    fn tile_block(&mut self, registers: &Registers, [row, from, column]: [usize; 3]) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let (first, rows) = (row * outputs + self.first + column, self.out.len() / outputs - row);
        let (tall, depth) = (rows > amx::SIDE, DEPTH.min(inputs - from));
        let (count, accumulate) = ((self.columns - column).min(amx::BLOCK), from > 0 || self.accumulate);
        let a = self.x[row * inputs + from..].as_ptr();
        let b = self.weight[column * inputs + from * amx::BLOCK..].as_ptr();
        let factors = amx::Factors { a: (a, inputs), b: (b, amx::BLOCK), depth };
        let multiply = |to: amx::Rows<*mut f32>| {
            // SAFETY: `in_tiles` has checked that `x` has whole blocks of rows and the weight whole
            // panels, which are whole blocks of columns; `to` has room for the block.
            unsafe { registers.multiply(tall, to, factors, accumulate) }
        };
        if count == amx::BLOCK && (rows >= amx::BLOCK || rows == amx::SIDE) {
            multiply((self.out[first..].as_mut_ptr(), outputs));
            return;
        }
        let mut room = [[0.0; amx::BLOCK]; amx::BLOCK];
        let there = |r: usize| first + r * outputs..first + r * outputs + count;
        let rows = rows.min(amx::BLOCK);
        if accumulate {
            for (r, room) in room.iter_mut().enumerate().take(rows) {
                room[..count].copy_from_slice(&self.out[there(r)]);
            }
        }
        multiply((room.as_flattened_mut().as_mut_ptr(), amx::BLOCK));
        for (r, room) in room.iter().enumerate().take(rows) {
            self.out[there(r)].copy_from_slice(&room[..count]);
        }
    }
}

/// Place of a block in a product.
#[derive(Clone, Copy)]
struct Place {
    /// Its first row.
    row: usize,
    /// Its panel of columns.
    panel: usize,
    /// Its first input.
    from: usize,
    /// Its first column in the panel.
    column: usize,
    /// Columns that are there.
    count: usize,
}
