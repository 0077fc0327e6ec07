//! Packs rows of tensors into the form that the products read: rotated, keys transposed, in f32 or
//! in pairs of bf16, in memory that starts on a cache line.

use std::ops::Range;

use candle_core::DType;
use half::bf16;

use super::fresh::{Fresh, written};
use super::inputs::{Elements, Matrix};
use super::lanes::{LINE, Lanes, PANEL, WIDEST};
use super::level::{EitherKernel, Kernel, Level, PairKernel, dispatch_either};
use super::pairs::{Pairs, pair_of};
use super::sight::{KeyList, Rows};
use super::stored::Factor;
use crate::{Pairing, Rope};

/// Numbers from here to the next cache line.
fn to_line(from: *const f32) -> usize {
    from.align_offset(LINE * size_of::<f32>()).min(LINE)
}

/// f32 memory that starts on a cache line.
#[derive(Debug)]
pub(super) struct Aligned {
    data: Vec<f32>,
    from: usize,
    len: usize,
}

impl Aligned {
    /// Zeros.
    pub(super) fn new(len: usize) -> Self {
        let data = vec![0.0; len + LINE];
        Self { from: to_line(data.as_ptr()), data, len }
    }

    /// Numbers that `write` writes: as [`written`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn written(len: usize, write: impl FnOnce(&mut Fresh) -> bool) -> Self {
        let mut from = 0;
        let all = |room: &mut Fresh| {
            from = to_line(room.as_ptr().cast());
            let (before, numbers) = room.split_at_mut(from);
            let (numbers, after) = numbers.split_at_mut(len);
            before.iter_mut().chain(after).for_each(|around| _ = around.write(0.0));
            write(numbers)
        };
        // SAFETY: the caller's promise; the numbers around these are written here.
        let data = unsafe { written(len + LINE, all) };
        Self { data, from, len }
    }

    pub(super) fn get(&self) -> &[f32] {
        &self.data[self.from..self.from + self.len]
    }

    pub(super) fn get_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.from..self.from + self.len]
    }
}

/// Turns one head to its position.
#[inline(always)]
pub(super) fn rotate(x: &mut [f32], rope: &Rope, position: u32) {
    let (cos, sin) = rope.row(position);
    match rope.pairing() {
        Pairing::Half => {
            let (a, b) = x[..2 * cos.len()].split_at_mut(cos.len());
            for ((a, b), (cos, sin)) in a.iter_mut().zip(b).zip(cos.iter().zip(sin)) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        Pairing::Interleaved => {
            for (pair, (cos, sin)) in x.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
                (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
            }
        }
    }
}

/// The source of the queries of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuerySource<'a> {
    pub(super) level: Level,
    pub(super) q: Matrix<'a>,
    pub(super) rows: &'a Rows,
    pub(super) rope: Option<&'a Rope>,
    /// Scale of the scores, log₂ e included.
    pub(super) scale: f32,
    /// Query heads that share a KV head.
    pub(super) group: usize,
    /// Whether they are packed as pairs.
    pub(super) paired: bool,
}

impl QuerySource<'_> {
    /// Packs the heads of one KV head, of `rows` in the list of rows, to `[stacked rows, depth]`:
    /// rotated, times the scale.
    pub(super) fn pack(self, rows: Range<usize>, kv_head: usize, to: &mut [f32]) {
        dispatch_either(self.level, self.paired, PackQueries { source: self, rows, kv_head, to });
    }
}

/// Rows whose queries, or results, are asked for ahead: they come from memory.
pub(super) const ROWS_AHEAD: usize = 4;

struct PackQueries<'a> {
    source: QuerySource<'a>,
    rows: Range<usize>,
    kv_head: usize,
    to: &'a mut [f32],
}

impl EitherKernel for PackQueries<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, F: Factor<V>>(self) {
        let Self { source: QuerySource { q, rows: list, rope, scale, group, .. }, rows, kv_head, to } = self;
        let head_dim = q.head_dim();
        let depth = head_dim.div_ceil(F::NUMBERS);
        assert_eq!(to.len(), rows.len() * group * depth, "room for {} rows of {head_dim} numbers", rows.len());
        let mut values = vec![0.0; head_dim.next_multiple_of(2 * WIDEST)]; // those beyond a head stay 0
        let of_group = kv_head * group..(kv_head + 1) * group;
        let heads = rows.flat_map(|place| of_group.clone().map(move |head| (place, head)));
        for ((place, head), to) in heads.zip(to.chunks_exact_mut(depth)) {
            if head == of_group.start
                && let Some(&later) = list.index.get(place + ROWS_AHEAD)
            {
                q.prefetch::<V>(later as usize, of_group.clone());
            }
            q.widen(list.index[place] as usize, head, &mut values[..head_dim]);
            if let Some(rope) = rope {
                rotate(&mut values[..head_dim], rope, list.rope[place]);
            }
            // SAFETY: the caller promises the instructions; there is an even number of vectors of
            // values, and where `to` has no room for as many, they are packed where they are.
            unsafe {
                let in_place = values.len() > head_dim;
                let packed = if in_place { values.as_mut_ptr() } else { to.as_mut_ptr() };
                for from in (0..values.len()).step_by(2 * V::N) {
                    let first = V::load(values.as_ptr().add(from)).mul(V::splat(scale));
                    let second = V::load(values.as_ptr().add(from + V::N)).mul(V::splat(scale));
                    F::store(first, second, packed.add(from / F::NUMBERS));
                }
                if in_place {
                    to.copy_from_slice(&values[..depth]);
                }
            }
        }
    }
}

/// Keys from one that is packed to one that is asked for.
const KEYS_AHEAD: usize = 16;

/// The source of the keys of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeySource<'a> {
    pub(super) list: &'a KeyList,
    /// Keys and values of each block.
    pub(super) blocks: &'a [(Matrix<'a>, Matrix<'a>)],
    pub(super) rope: Option<&'a Rope>,
    pub(super) head_dim: usize,
    /// `head_dim` rounded up to [`super::lanes::WIDEST`]: the length of a packed row.
    pub(super) padded_dim: usize,
    /// Whether they are packed as pairs.
    pub(super) paired: bool,
}

impl KeySource<'_> {
    /// Numbers, or pairs of them, that a head's packed query and key have.
    pub(super) fn depth(&self) -> usize {
        if self.paired { self.head_dim.div_ceil(2) } else { self.head_dim }
    }

    /// Asks for the values of a key, which are packed soon, and for a later key.
    #[inline(always)]
    fn prefetch<V: Lanes>(&self, key: usize, kv_head: usize) {
        let (list, head) = (self.list, kv_head..kv_head + 1);
        self.blocks[list.block[key] as usize].1.prefetch::<V>(list.row[key] as usize, head.clone());
        if let Some(&block) = list.block.get(key + KEYS_AHEAD) {
            self.blocks[block as usize].0.prefetch::<V>(list.row[key + KEYS_AHEAD] as usize, head);
        }
    }

    /// Memory in which [`PackKeys`] prepares keys.
    pub(super) fn stage(padded_dim: usize) -> Aligned {
        Aligned::new(WIDEST * padded_dim + WIDEST)
    }
}

/// Whether queries and these keys and values are multiplied in pairs; those in 8 bits are unpacked
/// to `dtype`. Queries, rotated keys and probabilities are rounded for it; values are exact in
/// bf16.
pub(super) fn multiplies_pairs(level: Level, blocks: &[(Matrix<'_>, Matrix<'_>)], dtype: DType) -> bool {
    let is_narrow = |matrix: &Matrix<'_>| match matrix.elements() {
        Elements::Bf16(_) => true,
        Elements::Eight(_) => dtype == DType::BF16,
        _ => false,
    };
    level.has_pairs() && blocks.iter().all(|(k, v)| is_narrow(k) && is_narrow(v))
}

/// Packs one panel's keys: rotated and transposed to `k` `[padded_dim, PANEL]`, or in pairs of
/// neighbours in a head to `[depth, PANEL]`. Keys that are missing become 0.
pub(super) struct PackKeys<'a> {
    pub(super) source: KeySource<'a>,
    pub(super) panel: usize,
    pub(super) kv_head: usize,
    /// See [`KeySource::stage`].
    pub(super) stage: &'a mut [f32],
    pub(super) k: &'a mut [f32],
}

impl EitherKernel for PackKeys<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, F: Factor<V>>(self) {
        let KeySource { list, blocks, rope, head_dim, padded_dim, .. } = self.source;
        assert_eq!(self.k.len(), PANEL * padded_dim, "room for a panel");
        assert!(self.stage.len() >= V::N * padded_dim + WIDEST, "room for {} keys", V::N);
        let keys = list.keys_of(self.panel);
        for group in (0..PANEL).step_by(V::N) {
            for (i, staged) in self.stage.chunks_exact_mut(padded_dim).take(V::N).enumerate() {
                let key = keys.start + group + i;
                let (staged, rest) = staged.split_at_mut(head_dim);
                rest.fill(0.0);
                if key >= keys.end {
                    staged.fill(0.0);
                    continue;
                }
                self.source.prefetch::<V>(key, self.kv_head);
                blocks[list.block[key] as usize].0.widen(list.row[key] as usize, self.kv_head, staged);
                if let Some(rope) = rope {
                    rotate(staged, rope, list.rope[key]);
                }
            }
            let depth = (padded_dim / F::NUMBERS).next_multiple_of(V::N);
            for i in 0..V::N {
                // SAFETY: the caller promises the instructions. Pairs are made of whole vectors: of
                // up to one beyond a row, which holds numbers of the next one or nothing, come
                // those beyond its depth.
                unsafe { F::pack(self.stage.as_mut_ptr().add(i * padded_dim), F::NUMBERS * depth) }
            }
            for dim in (0..depth).step_by(V::N) {
                // SAFETY: the caller promises the instructions. `stage` has V::N rows of
                // `padded_dim` values, `k` has `padded_dim` rows of PANEL values; V::N divides
                // both and `depth`, so `dim` and `group` leave room for V::N more.
                unsafe {
                    let to = self.k.as_mut_ptr().add(dim * PANEL + group);
                    V::transpose(self.stage.as_ptr().add(dim), padded_dim, to, PANEL);
                }
            }
        }
    }
}

/// Packs one panel's values: `v` `[PANEL, padded_dim]`, 0 beyond `head_dim` and for keys that are
/// missing.
pub(super) struct PackValues<'a> {
    pub(super) source: KeySource<'a>,
    pub(super) panel: usize,
    pub(super) kv_head: usize,
    pub(super) v: &'a mut [f32],
    /// Set to false where a value is infinite or NaN.
    pub(super) finite: &'a mut bool,
}

impl Kernel for PackValues<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let KeySource { list, blocks, head_dim, padded_dim, .. } = self.source;
        let keys = list.keys_of(self.panel);
        let mut largest = 0u32; // of all magnitudes' bits; an infinity's are above every number's, a NaN's above those
        for (i, packed) in self.v.chunks_exact_mut(padded_dim).enumerate() {
            let (packed, rest) = packed.split_at_mut(head_dim);
            rest.fill(0.0);
            let key = keys.start + i;
            if key >= keys.end {
                packed.fill(0.0);
                continue;
            }
            blocks[list.block[key] as usize].1.widen(list.row[key] as usize, self.kv_head, packed);
            for value in packed.iter() {
                largest = largest.max(value.to_bits() & 0x7fff_ffff);
            }
        }
        *self.finite &= largest < f32::INFINITY.to_bits();
    }
}

/// Packs one panel's values in pairs of neighbouring keys: to the first half of `v`, `[PANEL / 2,
/// padded_dim]`, 0 beyond `head_dim` and for keys that are missing; the second half is scratch.
/// Values are in bf16, or in 8 bits.
pub(super) struct PairValues<'a> {
    pub(super) source: KeySource<'a>,
    pub(super) panel: usize,
    pub(super) kv_head: usize,
    pub(super) v: &'a mut [f32],
    /// Set to false where a value is infinite or NaN.
    pub(super) finite: &'a mut bool,
}

impl<'a> PairKernel for PairValues<'a> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(self) {
        let KeySource { list, blocks, head_dim, padded_dim, .. } = self.source;
        let keys = list.keys_of(self.panel);
        let row = |key: usize| (blocks[list.block[key] as usize].1, list.row[key] as usize);
        let narrow = |(matrix, row): (Matrix<'a>, usize)| matrix.bf16_row(row, self.kv_head);
        let mut largest = 0u16; // of all magnitudes' bits; an infinity's are above every number's, a NaN's above those
        let (pairs, stage) = self.v.split_at_mut(PANEL / 2 * padded_dim);
        let (staged_first, staged_second) = stage[..2 * padded_dim].split_at_mut(padded_dim);
        for (packed, key) in pairs.chunks_exact_mut(padded_dim).zip((keys.start..).step_by(2)) {
            let (packed, rest) = packed.split_at_mut(head_dim);
            rest.fill(0.0);
            if key >= keys.end {
                packed.fill(0.0);
                continue;
            }
            let (first, second) = (row(key), (key + 1 < keys.end).then(|| row(key + 1)));
            if let (Some(first), Some(second)) = (narrow(first), second.and_then(narrow)) {
                for (packed, (first, second)) in packed.iter_mut().zip(first.iter().zip(second)) {
                    largest = largest.max(first.to_bits() & 0x7fff).max(second.to_bits() & 0x7fff);
                    *packed = pair_of(*first, *second);
                }
                continue;
            }
            first.0.widen(first.1, self.kv_head, &mut staged_first[..head_dim]);
            match second {
                Some((matrix, row)) => matrix.widen(row, self.kv_head, &mut staged_second[..head_dim]),
                None => staged_second.fill(0.0),
            }
            for (packed, (first, second)) in packed.iter_mut().zip(staged_first.iter().zip(&*staged_second)) {
                let (first, second) = (bf16::from_f32(*first), bf16::from_f32(*second));
                largest = largest.max(first.to_bits() & 0x7fff).max(second.to_bits() & 0x7fff);
                *packed = pair_of(first, second);
            }
        }
        *self.finite &= largest < bf16::INFINITY.to_bits();
    }
}
