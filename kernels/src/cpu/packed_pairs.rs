//! Matrix products of few rows with a packed weight, in pairs of bf16: codes of up to eight bits
//! are such numbers exactly, so that each is looked up and multiplied at once, and only the sum of
//! a run of 32, or of the runs that share a scale, is multiplied by it. Inputs are rounded to bf16;
//! sums are f32.

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use super::block::{UNEVEN, f32_of, half};
use super::blocks::{E2M1_TWICE, power};
use super::few_rows::{Turns, in_tasks};
use super::lanes::prefetch_bytes;
use super::level::{Level, NARROW, PairKernel, dispatch_narrow_pairs, dispatch_pairs};
use super::many_rows::paired;
use super::pairs::Pairs;
use super::super_blocks::{of_runs, scales_of_uneven};
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

/// The product of a weight in one of the packings that are multiplied so; `None` for others. As
/// [`super::packed_rows::product`].
pub(super) fn product(level: Level, x: &[f32], weight: &Packed) -> Option<Vec<f32>> {
    let table = |numbers: &dyn Fn(usize) -> f32| std::array::from_fn(|code| bf16::from_f32(numbers(code % 16)));
    let five = |least: f32| std::array::from_fn(|code| bf16::from_f32(code as f32 + least));
    let call = Call { level, x, weight };
    Some(match weight.packing() {
        Packing::Q4_0 => call.with::<Q4_0>(&table(&|code| code as f32 - 8.0)),
        Packing::Q4_1 => call.with::<Q4_1>(&table(&|code| code as f32)),
        Packing::Int4 => call.with::<Int4>(&std::array::from_fn(|less| {
            bf16::from_f32(if less < 16 { less as f32 } else { less as f32 - 32.0 })
        })),
        Packing::Q5_0 => call.with::<Q5_0>(&five(-16.0)),
        Packing::Q5_1 => call.with::<Q5_1>(&five(0.0)),
        Packing::Q5K => call.with::<Q5K>(&five(0.0)),
        Packing::Fp8 => call.with::<Fp8>(&[bf16::ZERO; 32]),
        Packing::Q4K => call.with::<Q4K>(&table(&|code| code as f32)),
        // As Q4_0, with other numbers for the codes.
        Packing::Iq4Nl => call.with::<Q4_0>(&table(&|code| f32::from(UNEVEN[code]))),
        Packing::Iq4Xs => call.with::<Iq4Xs>(&table(&|code| f32::from(UNEVEN[code]))),
        Packing::Mxfp4 => call.with::<Mxfp4>(&table(&|code| f32::from(E2M1_TWICE[code]) / 2.0)),
        Packing::Q8_0 => call.with::<Q8_0>(&[bf16::ZERO; 32]),
        Packing::Int8 => call.with::<Int8>(&[bf16::ZERO; 32]),
        Packing::Fp8G128 => call.with::<Fp8G128>(&[bf16::ZERO; 32]),
        Packing::Int8G128 => call.with::<Int8G128>(&[bf16::ZERO; 32]),
        Packing::Int4G128 => call.with::<Int4G128>(&table(&|code| code as f32)),
        _ => return None,
    })
}

/// A kind of block of runs of 32 codes; one run or several have a scale and an offset.
trait Runs {
    const BYTES: usize;
    const RUNS: usize;
    /// Runs that share a scale and an offset.
    const SHARED: usize;
    /// Whether runs have offsets; else these are 0.
    const OFFSETS: bool;
    /// Whether narrow vectors take less time, as where each run has a scale.
    const NARROW: bool = Self::SHARED == 1;

    /// Scale and offset of each run, or of runs that share them, in the first places.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn scales<V: Pairs>(block: &[u8]) -> [[f32; 2]; 8];

    /// `2 · V::N` codes of a run, from code `2 · V::N · part` on.
    ///
    /// # Safety
    /// The machine has the instructions for pairs; there are `BYTES` bytes.
    unsafe fn codes<V: Pairs>(block: &[u8], run: usize, part: usize, table: &[bf16; 32]) -> V;
}

#[derive(Clone, Copy)]
struct Call<'a> {
    level: Level,
    x: &'a [f32],
    weight: &'a Packed,
}

impl Call<'_> {
    fn with<B: Runs + Sync>(self, table: &[bf16; 32]) -> Vec<f32> {
        let Self { level, x, weight } = self;
        let inputs = weight.dims()[1];
        let rows = x.len() / inputs;
        assert_eq!(x.len(), rows * inputs, "x");
        let pairs = paired(level, x);
        let lanes = if B::NARROW { NARROW } else { level.lanes() };
        let pairs = Turns::in_blocks(lanes, pairs.get(), inputs / 2, blocks(rows));
        let of_runs = |runs: &[f32]| runs.iter().map(|&value| bf16::from_f32(value).to_f32()).sum();
        let sums: Vec<f32> = x.chunks_exact(B::SHARED * RUN).map(of_runs).collect();
        in_tasks(rows, weight.bytes(), weight.row_bytes(), |columns, out| {
            let (pairs, sums) = (&pairs, sums.as_slice());
            let work = PackedPairs::<B> { rows, pairs, sums, inputs, columns, table, out, kind: PhantomData };
            if B::NARROW { dispatch_narrow_pairs(level, work) } else { dispatch_pairs(level, work) }
        })
    }
}

struct PackedPairs<'a, B> {
    rows: usize,
    /// Of `[rows, inputs / 2]`.
    pairs: &'a Turns<'a>,
    /// The sum of the inputs of each run, or of runs that share an offset.
    sums: &'a [f32],
    inputs: usize,
    /// `[columns, blocks]`.
    columns: &'a [u8],
    table: &'a [bf16; 32],
    /// `[rows, columns]`.
    out: &'a mut [f32],
    kind: PhantomData<B>,
}

impl<B: Runs> PairKernel for PackedPairs<'_, B> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(mut self) {
        let row_bytes = self.inputs / RUN / B::RUNS * B::BYTES;
        let columns = self.columns.len() / row_bytes;
        assert_eq!(self.sums.len() * B::SHARED * RUN, self.rows * self.inputs, "sums of runs");
        assert_eq!(self.out.len(), self.rows * columns, "room for the result");
        for first in (0..columns).step_by(COLUMNS) {
            let mut row = 0;
            while row < self.rows {
                // SAFETY: the caller promises the instructions; these rows and columns are there.
                row += unsafe {
                    match block_of(self.rows - row) {
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

/// The blocks in which rows are multiplied.
fn blocks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let first = from;
        from += if first < rows { block_of(rows - first) } else { 0 };
        (first < from).then_some(first..from)
    })
}

/// Rows of the next block, where so many are left.
fn block_of(left: usize) -> usize {
    match left {
        1 => 1,
        2 | 3 => 2,
        4..ROWS => 4,
        _ => ROWS,
    }
}

/// Sums of R rows times a column: in lanes, and of offsets.
#[derive(Clone, Copy)]
struct Sums<V, const R: usize> {
    lanes: [V; R],
    offsets: [f32; R],
}

impl<B: Runs> PackedPairs<'_, B> {
    /// R rows from `row` on times [`COLUMNS`] columns, or as many as are left, from `first` on: a
    /// piece of the inputs of all of them after the other, so that the rows' piece stays in the
    /// nearest cache. Returns R.
    ///
    /// # Safety
    /// The machine has the instructions for pairs; the rows are there.
    #[inline(always)]
    unsafe fn columns<V: Pairs, const R: usize>(&mut self, row: usize, first: usize) -> usize {
        let blocks = self.inputs / RUN / B::RUNS;
        let row_bytes = blocks * B::BYTES;
        let (all, columns) = (self.columns, self.columns.len() / row_bytes);
        let width = COLUMNS.min(columns - first);
        // One row is near whole: a column is read from one end to the other.
        let piece = if R == 1 { blocks } else { (NEAR / R / RUN / B::RUNS).max(1) };
        // SAFETY: the caller promises the instructions.
        let mut sums = unsafe { [Sums { lanes: [V::splat(0.0); R], offsets: [0.0; R] }; COLUMNS] };
        for from in (0..blocks).step_by(piece) {
            let bytes = from * B::BYTES..blocks.min(from + piece) * B::BYTES;
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
        for (column, Sums { lanes, offsets }) in sums[..width].iter().enumerate() {
            for (r, (sum, offset)) in lanes.iter().zip(offsets).enumerate() {
                self.out[(row + r) * columns + first + column] = sum.total() + offset;
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
    unsafe fn piece<V: Pairs, const R: usize>(&self, row: usize, from: usize, bytes: &[u8], sums: &mut Sums<V, R>) {
        let scaled = self.inputs / RUN / B::SHARED;
        let pairs = self.pairs.of_block(row, R, from * B::RUNS * RUN / 2).as_ptr();
        let run_sums = self.sums[row * scaled..(row + R) * scaled].as_ptr();
        // SAFETY: the caller's promises; a block has `B::RUNS` runs of 32 numbers, of which the
        // rows have as many.
        unsafe {
            let mut lanes = sums.lanes;
            for (index, block) in bytes.chunks_exact(B::BYTES).enumerate() {
                let scales = B::scales::<V>(block);
                for (place, [scale, offset]) in scales.into_iter().enumerate().take(B::RUNS / B::SHARED) {
                    let mut dots = [V::splat(0.0); R];
                    for run in place * B::SHARED..(place + 1) * B::SHARED {
                        for part in 0..RUN / 2 / V::N {
                            let codes = B::codes::<V>(block, run, part, self.table);
                            let from = (index * B::RUNS + run) * RUN / 2 + part * V::N;
                            for (r, dot) in dots.iter_mut().enumerate() {
                                *dot = dot.dot(codes, V::load(pairs.add(R * from + r * V::N)));
                            }
                        }
                    }
                    let at = (from + index) * B::RUNS / B::SHARED + place;
                    for (r, (sum, offset_sum)) in lanes.iter_mut().zip(&mut sums.offsets).enumerate() {
                        *sum = dots[r].mul_add(V::splat(scale), *sum);
                        if B::OFFSETS {
                            *offset_sum += offset * *run_sums.add(r * scaled + at);
                        }
                    }
                }
            }
            sums.lanes = lanes;
        }
    }
}

/// A block whose runs share a scale: their number, where their codes begin, their kind, whether
/// there is an offset, and what gives scale and offset.
macro_rules! one_scale {
    ($name:ident, $bytes:literal, $runs:literal at $codes:literal, $kind:ident, $offsets:literal,
     |$block:ident| $scales:expr) => {
        struct $name;
        impl Runs for $name {
            const BYTES: usize = $bytes;
            const RUNS: usize = $runs;
            const SHARED: usize = $runs;
            const OFFSETS: bool = $offsets;

            #[inline(always)]
            unsafe fn scales<V: Pairs>($block: &[u8]) -> [[f32; 2]; 8] {
                let mut scales = [[0.0; 2]; 8];
                // SAFETY: the caller promises the instructions, which not all of these need.
                #[allow(unused_unsafe)]
                let of_runs = unsafe { $scales };
                scales[0] = of_runs;
                scales
            }

            #[inline(always)]
            unsafe fn codes<V: Pairs>(block: &[u8], run: usize, part: usize, table: &[bf16; 32]) -> V {
                // SAFETY: the caller's promises.
                unsafe { $kind::<V>(block.as_ptr().add($codes), run, part, table) }
            }
        }
    };
}

/// Codes of four bits.
///
/// # Safety
/// As [`Pairs::look_up_both`].
#[inline(always)]
unsafe fn four_bits<V: Pairs>(from: *const u8, _run: usize, part: usize, table: &[bf16; 32]) -> V {
    // SAFETY: the caller's promises.
    unsafe { V::look_up_both(from, part, table) }
}

/// Codes of four bits less a zero point, which is in the byte before.
///
/// # Safety
/// As [`Pairs::look_up_less`]; `from` is valid for a read of that byte.
#[inline(always)]
unsafe fn four_bits_less<V: Pairs>(from: *const u8, _run: usize, part: usize, table: &[bf16; 32]) -> V {
    // SAFETY: the caller's promises.
    unsafe { V::look_up_less(from, *from.sub(1), part, table) }
}

/// Codes of eight bits.
///
/// # Safety
/// The machine has the instructions for pairs; `from` is valid for 32 reads a run.
#[inline(always)]
unsafe fn eight_bits<V: Pairs>(from: *const u8, run: usize, part: usize, _: &[bf16; 32]) -> V {
    // SAFETY: the caller's promises.
    unsafe { V::load_i8_paired(from.add(RUN * run + 2 * V::N * part).cast()) }
}

/// Numbers in E4M3, divided by 256.
///
/// # Safety
/// As [`eight_bits`].
#[inline(always)]
unsafe fn e4m3<V: Pairs>(from: *const u8, _run: usize, part: usize, _: &[bf16; 32]) -> V {
    // SAFETY: the caller's promises.
    unsafe { V::load_e4m3_paired(from.add(2 * V::N * part)) }
}

/// Part of a run, as part of the two runs that are looked up at once.
#[inline(always)]
fn of_two<V: Pairs>(run: usize, part: usize) -> usize {
    run % 2 * (RUN / 2 / V::N) + part
}

/// Codes of four bits of several runs.
///
/// # Safety
/// The machine has the instructions for pairs; `from` is valid for 16 reads a run of an even number
/// of them.
#[inline(always)]
unsafe fn four_bits_of_64<V: Pairs>(from: *const u8, run: usize, part: usize, table: &[bf16; 32]) -> V {
    // SAFETY: the caller's promises.
    unsafe { V::look_up_both_of_64(from.add(RUN * (run / 2)), of_two::<V>(run, part), table) }
}

/// Numbers in E4M3, divided by 256, of several runs.
///
/// # Safety
/// As [`four_bits_of_64`], for 32 reads a run.
#[inline(always)]
unsafe fn e4m3_of_64<V: Pairs>(from: *const u8, run: usize, part: usize, _: &[bf16; 32]) -> V {
    // SAFETY: the caller's promises.
    unsafe { V::load_e4m3_of_64(from.add(2 * RUN * (run / 2)), of_two::<V>(run, part)) }
}

/// Codes of five bits, the fifth ones in the four bytes before.
///
/// # Safety
/// As [`Pairs::look_up_five`]; `from` is valid for reads of those bytes.
#[inline(always)]
unsafe fn five_bits<V: Pairs>(from: *const u8, _run: usize, part: usize, table: &[bf16; 32]) -> V {
    // SAFETY: the caller's promises.
    unsafe {
        let bits = u32::from_le_bytes(from.sub(4).cast::<[u8; 4]>().read());
        V::look_up_five(from, bits, part, table)
    }
}

one_scale!(Q5_0, 22, 1 at 6, five_bits, false, |block| [half::<V>(block, 0), 0.0]);
one_scale!(Q5_1, 24, 1 at 8, five_bits, true, |block| [half::<V>(block, 0), half::<V>(block, 2)]);
one_scale!(Fp8, 36, 1 at 4, e4m3, false, |block| [256.0 * f32_of(block), 0.0]);
one_scale!(Q4_0, 18, 1 at 2, four_bits, false, |block| [half::<V>(block, 0), 0.0]);
one_scale!(Q4_1, 20, 1 at 4, four_bits, true, |block| [half::<V>(block, 0), half::<V>(block, 2)]);
one_scale!(Int4, 21, 1 at 5, four_bits_less, false, |block| [f32_of(block), 0.0]);
one_scale!(Mxfp4, 17, 1 at 1, four_bits, false, |block| [power(block[0]), 0.0]);
one_scale!(Q8_0, 34, 1 at 2, eight_bits, false, |block| [half::<V>(block, 0), 0.0]);
one_scale!(Int8, 36, 1 at 4, eight_bits, false, |block| [f32_of(block), 0.0]);
one_scale!(Fp8G128, 132, 4 at 4, e4m3_of_64, false, |block| [256.0 * f32_of(block), 0.0]);
one_scale!(Int4G128, 72, 4 at 8, four_bits_of_64, true, |block| [f32_of(block), f32_of(&block[4..])]);
one_scale!(Int8G128, 132, 4 at 4, eight_bits, false, |block| [f32_of(block), 0.0]);

struct Q4K;
impl Runs for Q4K {
    const BYTES: usize = 144;
    const RUNS: usize = 8;
    const SHARED: usize = 1;
    const OFFSETS: bool = true;
    const NARROW: bool = false;

    #[inline(always)]
    unsafe fn scales<V: Pairs>(block: &[u8]) -> [[f32; 2]; 8] {
        // SAFETY: the caller promises the instructions.
        unsafe { of_runs::<V>(block) }
    }

    #[inline(always)]
    unsafe fn codes<V: Pairs>(block: &[u8], run: usize, part: usize, table: &[bf16; 32]) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::look_up(block.as_ptr().add(16 + 32 * (run / 2) + 2 * V::N * part), run % 2 == 1, table) }
    }
}

struct Q5K;
impl Runs for Q5K {
    const BYTES: usize = 176;
    const RUNS: usize = 8;
    const SHARED: usize = 1;
    const OFFSETS: bool = true;
    const NARROW: bool = false;

    #[inline(always)]
    unsafe fn scales<V: Pairs>(block: &[u8]) -> [[f32; 2]; 8] {
        // SAFETY: the caller promises the instructions.
        unsafe { of_runs::<V>(block) }
    }

    #[inline(always)]
    unsafe fn codes<V: Pairs>(block: &[u8], run: usize, part: usize, table: &[bf16; 32]) -> V {
        let from = 2 * V::N * part;
        // SAFETY: the caller's promises.
        unsafe {
            let both = [block.as_ptr().add(48 + 32 * (run / 2) + from), block.as_ptr().add(16 + from)];
            V::look_up_five_of(both, run % 2 == 1, run as u32, table)
        }
    }
}

struct Iq4Xs;
impl Runs for Iq4Xs {
    const BYTES: usize = 136;
    const RUNS: usize = 8;
    const SHARED: usize = 1;
    const OFFSETS: bool = false;

    #[inline(always)]
    unsafe fn scales<V: Pairs>(block: &[u8]) -> [[f32; 2]; 8] {
        // SAFETY: the caller promises the instructions.
        let scales = unsafe { scales_of_uneven::<V>(block) };
        scales.map(|scale| [scale, 0.0])
    }

    #[inline(always)]
    unsafe fn codes<V: Pairs>(block: &[u8], run: usize, part: usize, table: &[bf16; 32]) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::look_up_both(block.as_ptr().add(8 + 16 * run), part, table) }
    }
}
