//! Some rows times some columns of a weight that are packed: six rows at a time against a panel, or
//! blocks of 32 rows in tile registers.

// Loops over register blocks count, so that they read like the products they are and unroll whole.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;

use super::amx::Registers;
use super::fresh::Fresh;
use super::lanes::{LINE, Lanes, STRIP};
use super::level::EitherKernel;
use super::stored::Factor;
use super::{amx, micro};

/// Columns of a packed panel of the weight: with AVX-512, as many as the sums of six rows leave
/// registers for.
pub(super) const COLUMNS: usize = 64;
/// Most inputs, or pairs of them, that are summed at a time: those of a strip stay in the nearest
/// cache, those of a panel in the second.
const DEPTH: usize = 512;
/// The same of blocks in tile registers, whose rows are more.
const TILE_DEPTH: usize = 256;

/// Inputs that are summed at a time: about as many each time.
fn depth(inputs: usize) -> usize {
    inputs.div_ceil(inputs.div_ceil(DEPTH).max(1)).max(1)
}

/// The terms that are added to a product.
#[derive(Clone, Copy, Default)]
pub(super) struct Added<'a> {
    /// `[rows, outputs]`.
    pub(super) onto: Option<&'a [f32]>,
    /// `[outputs]`.
    pub(super) bias: Option<&'a [f32]>,
}

impl Added<'_> {
    /// The same of the rows from this number of the result on.
    pub(super) fn from(self, number: usize) -> Self {
        Self { onto: self.onto.map(|onto| &onto[number..]), ..self }
    }

    fn is_nothing(self) -> bool {
        self.onto.is_none() && self.bias.is_none()
    }

    /// Writes what is added to a row's numbers from `first` on, those of the columns from `column`
    /// on, to `to`.
    #[inline(never)]
    fn write(self, first: usize, column: usize, to: &mut Fresh) {
        let count = to.len();
        match (self.onto.map(|onto| &onto[first..][..count]), self.bias.map(|bias| &bias[column..][..count])) {
            (None, None) => to.iter_mut().for_each(|to| _ = to.write(0.0)),
            (Some(added), None) | (None, Some(added)) => _ = to.write_copy_of_slice(added),
            (Some(onto), Some(bias)) => {
                to.iter_mut().zip(onto.iter().zip(bias)).for_each(|(to, (onto, bias))| _ = to.write(onto + bias));
            }
        }
    }
}

/// Some rows times some packed columns.
pub(super) struct Multiply<'a> {
    /// `[rows, inputs]`, and what follows.
    pub(super) x: &'a [f32],
    /// `[panels, inputs, COLUMNS]`, of blocks of tiles `[2 · panels, inputs, BLOCK]`.
    pub(super) weight: &'a [f32],
    pub(super) inputs: usize,
    /// First and number of the columns that are written.
    pub(super) first: usize,
    pub(super) columns: usize,
    /// `[rows, outputs]`.
    pub(super) outputs: usize,
    pub(super) added: Added<'a>,
    pub(super) out: &'a mut Fresh,
}

impl EitherKernel for Multiply<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, F: Factor<V>>(mut self) {
        let rows = self.out.len() / self.outputs;
        assert!(self.x.len() >= rows * self.inputs, "rows of x");
        assert!(self.first + self.columns <= self.outputs, "columns");
        assert!(self.weight.len() >= self.columns.div_ceil(COLUMNS) * self.inputs * COLUMNS, "packed weight");
        for from in (0..self.inputs).step_by(depth(self.inputs)) {
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
                match (V::BLOCK, at.count.div_ceil(V::N)) {
                    (1, _) => self.block::<V, F, ROWS, 1>(at),
                    (2, _) => self.block::<V, F, ROWS, 2>(at),
                    (_, 1 | 2) if ROWS == STRIP => self.block::<V, F, ROWS, 2>(at),
                    (_, 3) if ROWS == STRIP => self.block::<V, F, ROWS, 3>(at),
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
        let depth = depth(inputs).min(inputs - from);
        let first = row * outputs + self.first + panel * COLUMNS + column;
        let (whole, above) = (count == WIDTH * V::N, self.first + panel * COLUMNS + column);
        if from == 0 {
            self.prefetch::<V>(first + ROWS * outputs, (ROWS, WIDTH * V::N)); // the next strip's
        }
        let mut room = MaybeUninit::<[[f32; COLUMNS]; ROWS]>::uninit();
        if !whole {
            room.write([[0.0; COLUMNS]; ROWS]);
        }
        let room = (room.as_mut_ptr().cast::<f32>(), COLUMNS);
        let result = (self.out[first..][..(ROWS - 1) * outputs + count].as_mut_ptr().cast::<f32>(), outputs);
        // SAFETY: the caller's promises. The room has ROWS rows of WIDTH vectors, as a block has;
        // if it is not whole, `count` numbers of each row are copied between the room and the
        // result. What stands in the result is read where earlier inputs have been summed.
        unsafe {
            let begin = match self.added {
                _ if from > 0 && whole => Some(result),
                _ if from > 0 => {
                    copy(ROWS, result, room, count);
                    Some(room)
                }
                Added { onto: None, bias: None } => None,
                Added { onto: Some(onto), bias: None } if whole => Some((onto[first..].as_ptr().cast_mut(), outputs)),
                added => {
                    for r in 0..ROWS {
                        let row = std::slice::from_raw_parts_mut(room.0.add(r * COLUMNS).cast(), count);
                        added.write(first + r * outputs, above, row);
                    }
                    Some(room)
                }
            };
            let mut acc = [[V::splat(0.0); WIDTH]; ROWS];
            if let Some((begin, step)) = begin {
                for r in 0..ROWS {
                    for i in 0..WIDTH {
                        acc[r][i] = V::load(begin.add(r * step + i * V::N));
                    }
                }
            }
            let x = self.x[row * inputs + from..][..(ROWS - 1) * inputs + depth].as_ptr();
            let weight = self.weight[(panel * inputs + from) * COLUMNS + column..].as_ptr();
            micro::product::<V, F, ROWS, WIDTH>(&mut acc, (x, inputs, 1), (weight, COLUMNS), depth);
            let (to, step) = if whole { result } else { room };
            for r in 0..ROWS {
                for i in 0..WIDTH {
                    acc[r][i].store(to.add(r * step + i * V::N));
                }
            }
            if !whole {
                copy(ROWS, room, result, count);
            }
        }
    }

    /// Asks for a part of the result that has not been met yet, and of what is added there.
    #[inline(never)]
    fn prefetch<V: Lanes>(&self, first: usize, (rows, columns): (usize, usize)) {
        for row in 0..rows {
            for line in (0..columns).step_by(LINE) {
                let number = first + row * self.outputs + line;
                V::prefetch(self.out.as_ptr().wrapping_add(number));
                if let Some(onto) = self.added.onto {
                    V::prefetch(onto.as_ptr().wrapping_add(number));
                }
            }
        }
    }
}

/// Copies `count` numbers of each row.
///
/// # Safety
/// Both have as many rows of `count` numbers, those of `from` written, and share none.
#[inline(never)]
unsafe fn copy(rows: usize, (from, step): (*mut f32, usize), (to, to_step): (*mut f32, usize), count: usize) {
    for r in 0..rows {
        // SAFETY: the caller's promises.
        unsafe { to.add(r * to_step).copy_from_nonoverlapping(from.add(r * step), count) }
    }
}

impl Multiply<'_> {
    /// The same in tiles: `x` has room for whole blocks of rows, and `inputs` are whole tiles.
    pub(super) fn in_tiles(mut self, registers: &Registers) {
        let rows = self.out.len() / self.outputs;
        assert!(self.x.len() >= rows.next_multiple_of(amx::BLOCK) * self.inputs, "rows of x");
        assert!(self.first + self.columns <= self.outputs, "columns");
        assert!(self.weight.len() >= self.columns.div_ceil(COLUMNS) * self.inputs * COLUMNS, "packed weight");
        for from in (0..self.inputs).step_by(TILE_DEPTH) {
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
        let (tall, depth) = (rows > amx::SIDE, TILE_DEPTH.min(inputs - from));
        let count = (self.columns - column).min(amx::BLOCK);
        let accumulate = from > 0 || !self.added.is_nothing();
        let a = self.x[row * inputs + from..].as_ptr();
        let b = self.weight[column * inputs + from * amx::BLOCK..].as_ptr();
        let factors = amx::Factors { a: (a, inputs), b: (b, amx::BLOCK), depth };
        let multiply = |to: amx::Rows<*mut f32>| {
            // SAFETY: `in_tiles` has checked that `x` has whole blocks of rows and the weight whole
            // panels, which are whole blocks of columns; `to` has room for the block.
            unsafe { registers.multiply(tall, to, factors, accumulate) }
        };
        let (is_first, whole) =
            (from == 0 && accumulate, count == amx::BLOCK && (rows >= amx::BLOCK || rows == amx::SIDE));
        let rows = rows.min(amx::BLOCK);
        if whole {
            for r in (0..rows).filter(|_| is_first) {
                let number = first + r * outputs;
                self.added.write(number, self.first + column, &mut self.out[number..][..count]);
            }
            multiply((self.out[first..].as_mut_ptr().cast(), outputs));
            return;
        }
        let mut room = [[MaybeUninit::new(0.0); amx::BLOCK]; amx::BLOCK];
        for (r, room) in room.iter_mut().enumerate().take(rows).filter(|_| accumulate) {
            let number = first + r * outputs;
            match is_first {
                true => self.added.write(number, self.first + column, &mut room[..count]),
                false => room[..count].copy_from_slice(&self.out[number..][..count]),
            }
        }
        multiply((room.as_flattened_mut().as_mut_ptr().cast(), amx::BLOCK));
        for (r, room) in room.iter().enumerate().take(rows) {
            self.out[first + r * outputs..][..count].copy_from_slice(&room[..count]);
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
