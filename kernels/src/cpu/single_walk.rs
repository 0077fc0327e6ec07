//! The inner part of attention of one query row: a walk over rows of a block, a tile at a time. The
//! heads that share a KV head go together, up to four of them, so that a key is widened once for
//! all.
//!
//! A vector of scores holds every head of the bundle for as many keys as there is room for: lane
//! `key · rows + row`.

// Loops over register blocks count, so that they read like the products they are and unroll whole.
#![allow(clippy::needless_range_loop)]

use half::bf16;

use super::inputs::Matrix;
use super::lanes::{CausalPosition, Lanes, Pairs};
use super::level::{Kernel, PairKernel};
use super::pack::Aligned;
use super::stored::{Factor, One, Stored, Two};
use super::strip::{LOWEST, WIDEST};
use crate::SHARED;

/// Keys that are looked at together.
const TILE: usize = 64;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Heads that are taken together. Divides the width of every vector.
pub(super) const MOST_ROWS: usize = 4;

/// One, two or [`MOST_ROWS`] heads that share a KV head, and their softmax so far.
pub(super) struct Heads {
    pub(super) kv_head: usize,
    /// The first one among the packed heads.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Largest score so far; lane `i` is of row `i mod rows`.
    top: [f32; WIDEST],
    /// Parts of the sum of 2^(score − top); lanes alike.
    sum: [f32; WIDEST],
}

impl Heads {
    pub(super) fn new(kv_head: usize, first: usize, rows: usize) -> Self {
        Self { kv_head, first, rows, top: [LOWEST; WIDEST], sum: [0.0; WIDEST] }
    }

    pub(super) fn top_of(&self, row: usize) -> f32 {
        self.top[row]
    }

    pub(super) fn sum_of(&self, row: usize) -> f32 {
        self.sum.iter().skip(row).step_by(self.rows).sum()
    }
}

/// The working memory of a task.
pub(super) struct Scratch {
    /// Sum of 2^(score − top) · value, as the queries are packed.
    pub(super) out: Aligned,
    /// `[TILE, rows]` scores, then probabilities, of a bundle; of pairs, those of two keys in a
    /// lane.
    p: Aligned,
}

impl Scratch {
    /// Scratch for `len` values of packed queries.
    pub(super) fn new(len: usize) -> Self {
        Self { out: Aligned::new(len), p: Aligned::new(TILE * MOST_ROWS + WIDEST) }
    }
}

/// Rows of a block, from `first` on as many as there are orders, taken into the result of every
/// bundle.
pub(super) struct Walk<'a, T> {
    pub(super) k: (&'a [T], Matrix<'a>),
    pub(super) v: (&'a [T], Matrix<'a>),
    pub(super) first: usize,
    /// The causal order of each of these rows.
    pub(super) order: &'a [u32],
    /// The segment of each of these rows.
    pub(super) segment: &'a [u32],
    /// The query's causal position.
    pub(super) place: CausalPosition,
    pub(super) head_dim: usize,
    /// Packed queries, `[.., head_dim]`, or half as many pairs.
    pub(super) q: &'a [f32],
    pub(super) heads: &'a mut [Heads],
    pub(super) scratch: &'a mut Scratch,
}

/// Rows of a tile that the query sees, in the block.
struct Seen {
    rows: [u32; TILE],
    count: usize,
}

impl<T: Stored> Kernel for Walk<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.all::<V, Wide>() }
    }
}

impl PairKernel for Walk<'_, bf16> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.all::<V, Paired>() }
    }
}

impl<T> Walk<'_, T> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn all<V: Lanes, W: Way<V, T>>(self) {
        let Self { k, v, first, order, segment, place, head_dim, q, heads, scratch } = self;
        let depth = head_dim / W::Factor::NUMBERS;
        assert_eq!(order.len(), segment.len(), "orders and segments");
        assert_eq!(depth % V::N, 0, "whole vectors");
        let last = first + order.len().saturating_sub(1);
        for heads in heads.iter() {
            assert!(matches!(heads.rows, 1 | 2 | MOST_ROWS), "{} heads at a time", heads.rows);
            assert!((heads.first + heads.rows) * depth <= q.len(), "packed queries");
            assert!((heads.first + heads.rows) * head_dim <= scratch.out.get().len(), "room for the result");
            assert!(k.1.place(last, heads.kv_head) + head_dim <= k.0.len(), "keys");
            assert!(v.1.place(last, heads.kv_head) + head_dim <= v.0.len(), "values");
        }
        for (index, (order, segment)) in order.chunks(TILE).zip(segment.chunks(TILE)).enumerate() {
            let seen = Seen::of(first + index * TILE, order, segment, place);
            if seen.count == 0 {
                continue;
            }
            for heads in heads.iter_mut() {
                let bundle = Bundle {
                    k: k.0.as_ptr().wrapping_add(k.1.place(0, heads.kv_head)),
                    k_step: k.1.row_step(),
                    v: v.0.as_ptr().wrapping_add(v.1.place(0, heads.kv_head)),
                    v_step: v.1.row_step(),
                    head_dim,
                    q: &q[heads.first * depth..],
                    p: scratch.p.get_mut(),
                    out: &mut scratch.out.get_mut()[heads.first * head_dim..],
                };
                // SAFETY: the caller promises the instructions; the asserts above are the
                // conditions of `absorb`, because no row comes after the last one.
                unsafe {
                    match heads.rows {
                        1 => bundle.absorb::<V, W, 1>(heads, &seen),
                        2 => bundle.absorb::<V, W, 2>(heads, &seen),
                        _ => bundle.absorb::<V, W, MOST_ROWS>(heads, &seen),
                    }
                }
            }
        }
    }
}

impl Seen {
    /// The rows of a tile that a query at `place` sees; `first` is the number of the tile's first
    /// row.
    #[inline(always)]
    fn of(first: usize, order: &[u32], segment: &[u32], place: CausalPosition) -> Self {
        let sees =
            |order: u32, segment: u32| (order <= place.order) & ((segment == place.segment) | (segment == SHARED));
        let mut rows = [0; TILE];
        let pairs = order.iter().zip(segment);
        if pairs.clone().fold(true, |all, (&order, &segment)| all & sees(order, segment)) {
            rows.iter_mut().enumerate().for_each(|(i, row)| *row = (first + i) as u32);
            return Self { rows, count: order.len() };
        }
        let mut count = 0;
        for (i, (&order, &segment)) in pairs.enumerate() {
            rows[count] = (first + i) as u32;
            count += usize::from(sees(order, segment));
        }
        Self { rows, count }
    }
}

/// A bundle's queries and results, and one KV head of a block.
struct Bundle<'a, T> {
    /// This head of row 0.
    k: *const T,
    k_step: usize,
    v: *const T,
    v_step: usize,
    head_dim: usize,
    q: &'a [f32],
    p: &'a mut [f32],
    out: &'a mut [f32],
}

/// How keys and values are read and multiplied.
trait Way<V: Lanes, T> {
    /// What a lane of a query and a key holds.
    type Factor: Factor<V>;

    /// A vector of a key.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; `from` is valid for as many numbers as a vector
    /// holds.
    unsafe fn key(from: *const T) -> V;

    /// A vector of the values of a key and, if a lane holds two numbers, of the one after it.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; both are valid for `V::N` reads.
    unsafe fn value(from: *const T, second: Option<*const T>) -> V;

    /// Packs the probabilities of `count` keys, `[count, ROWS]`, as such values are.
    fn pack<const ROWS: usize>(p: &mut [f32], count: usize);
}

/// Numbers are widened to f32.
enum Wide {}

/// Neighbours in a key, and the values of two keys, are multiplied as pairs.
enum Paired {}

impl<V: Lanes, T: Stored> Way<V, T> for Wide {
    type Factor = One;

    #[inline(always)]
    unsafe fn key(from: *const T) -> V {
        // SAFETY: the caller's promises.
        unsafe { T::load(from) }
    }

    #[inline(always)]
    unsafe fn value(from: *const T, _: Option<*const T>) -> V {
        // SAFETY: the caller's promises.
        unsafe { T::load(from) }
    }

    #[inline(always)]
    fn pack<const ROWS: usize>(_: &mut [f32], _: usize) {}
}

impl<V: Pairs> Way<V, bf16> for Paired {
    type Factor = Two;

    #[inline(always)]
    unsafe fn key(from: *const bf16) -> V {
        // SAFETY: the caller's promises; a pair has the size of an f32, and any address will do.
        unsafe { V::load(from.cast()) }
    }

    #[inline(always)]
    unsafe fn value(from: *const bf16, second: Option<*const bf16>) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::load_pairs(from, second) }
    }

    #[inline(always)]
    fn pack<const ROWS: usize>(p: &mut [f32], count: usize) {
        p[count * ROWS..(count + count % 2) * ROWS].fill(0.0);
        for pair in 0..count.div_ceil(2) {
            for r in 0..ROWS {
                // Probabilities are neither negative nor infinite: this rounds to the nearest.
                let round = |bits: u32| bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
                let [first, second] = [p[2 * pair * ROWS + r], p[(2 * pair + 1) * ROWS + r]].map(f32::to_bits);
                p[pair * ROWS + r] = f32::from_bits(round(first) | round(second) << 16);
            }
        }
    }
}

impl<T> Bundle<'_, T> {
    /// # Safety
    /// The machine has the instructions of `V`; `head_dim` is a whole number of vectors, `q` and
    /// `out` have ROWS heads, `p` is a [`Scratch`]'s, and the rows that were seen have this head in
    /// `k` and `v`.
    #[inline(always)]
    unsafe fn absorb<V: Lanes, W: Way<V, T>, const ROWS: usize>(mut self, heads: &mut Heads, seen: &Seen) {
        // SAFETY: the caller's promises; WIDEST lanes are at least a vector.
        unsafe {
            let old = V::load(heads.top.as_ptr());
            let mut lanes = [LOWEST; WIDEST];
            self.scores::<V, W, ROWS>(seen, old).store(lanes.as_mut_ptr());
            let mut top = heads.top;
            for lane in 0..V::N {
                top[lane % ROWS] = top[lane % ROWS].max(lanes[lane]);
            }
            for lane in ROWS..WIDEST {
                top[lane] = top[lane % ROWS];
            }
            heads.top = top;
            let new = V::load(top.as_ptr());
            let fade = old.sub(new).exp2();
            let mut sum = V::load(heads.sum.as_ptr()).mul(fade);
            for vector in 0..(seen.count * ROWS).div_ceil(V::N) {
                let p = self.p.as_mut_ptr().add(vector * V::N);
                let value = V::load(p).sub(new).exp2();
                value.store(p);
                sum = sum.add(value);
            }
            sum.store(heads.sum.as_mut_ptr());
            fade.store(lanes.as_mut_ptr());
            W::pack::<ROWS>(self.p, seen.count);
            self.values::<V, W, ROWS>(seen, &lanes);
        }
    }

    /// Writes the scores of the rows that were seen to `p`; takes their maximum into `top`.
    ///
    /// # Safety
    /// As [`absorb`](Self::absorb).
    #[inline(always)]
    unsafe fn scores<V: Lanes, W: Way<V, T>, const ROWS: usize>(&mut self, seen: &Seen, mut top: V) -> V {
        let keys = V::N / ROWS;
        for (vector, first) in (0..seen.count).step_by(keys).enumerate() {
            let mut k = [self.k; WIDEST];
            for i in 0..keys {
                let key = (first + i).min(seen.count - 1); // the last one again where there are no more
                k[i] = self.k.wrapping_add(seen.rows[key] as usize * self.k_step);
            }
            // The values of these rows come next.
            for key in first..(first + keys).min(seen.count) {
                prefetch::<V, T>(self.v.wrapping_add(seen.rows[key] as usize * self.v_step), self.head_dim);
            }
            // SAFETY: the caller's promises; the bundle has ROWS heads of `head_dim`, and i ·
            // ROWS + r < N.
            unsafe {
                let mut acc = [V::splat(0.0); WIDEST];
                let depth = self.head_dim / W::Factor::NUMBERS;
                for d in (0..depth).step_by(V::N) {
                    let mut q = [V::splat(0.0); ROWS];
                    for r in 0..ROWS {
                        q[r] = V::load(self.q.as_ptr().add(r * depth + d));
                    }
                    for i in 0..keys {
                        let key = W::key(k[i].add(d * W::Factor::NUMBERS));
                        for r in 0..ROWS {
                            acc[i * ROWS + r] = W::Factor::multiply(q[r], key, acc[i * ROWS + r]);
                        }
                    }
                }
                let p = self.p.as_mut_ptr().add(vector * V::N);
                V::sum_each(&acc[..V::N]).store(p);
                for lane in (seen.count - first) * ROWS..V::N {
                    *p.add(lane) = f32::NEG_INFINITY;
                }
                top = top.max(V::load(p));
            }
        }
        top
    }

    /// `out = out · fade + p · v` over the rows that were seen.
    ///
    /// # Safety
    /// As [`absorb`](Self::absorb).
    #[inline(always)]
    unsafe fn values<V: Lanes, W: Way<V, T>, const ROWS: usize>(&mut self, seen: &Seen, fade: &[f32; WIDEST]) {
        let vectors = self.head_dim / V::N;
        let groups = vectors.div_ceil(V::BLOCK);
        let mut from = 0;
        for group in 0..groups {
            let to = vectors * (group + 1) / groups; // widths differ by one at most
            // SAFETY: the caller's promises; vectors `from..to` lie within a head, and to − from ≤
            // V::BLOCK ≤ 4.
            unsafe {
                match to - from {
                    1 => self.value_block::<V, W, ROWS, 1>(seen, from * V::N, fade),
                    2 if V::BLOCK >= 2 => self.value_block::<V, W, ROWS, 2>(seen, from * V::N, fade),
                    3 if V::BLOCK >= 3 => self.value_block::<V, W, ROWS, 3>(seen, from * V::N, fade),
                    _ if V::BLOCK >= 4 => self.value_block::<V, W, ROWS, 4>(seen, from * V::N, fade),
                    width => unreachable!("{width} vectors in a block of {}", V::BLOCK),
                }
            }
            from = to;
        }
    }

    /// # Safety
    /// As [`values`](Self::values); WIDTH vectors from `column` on lie within a head.
    #[inline(always)]
    unsafe fn value_block<V: Lanes, W: Way<V, T>, const ROWS: usize, const WIDTH: usize>(
        &mut self,
        seen: &Seen,
        column: usize,
        fade: &[f32; WIDEST],
    ) {
        // SAFETY: the caller's promises; `p` holds ROWS probabilities of each row that was seen.
        unsafe {
            let out = self.out.as_mut_ptr().add(column);
            let mut acc = [[V::splat(0.0); WIDTH]; ROWS];
            for r in 0..ROWS {
                for i in 0..WIDTH {
                    acc[r][i] = V::load(out.add(r * self.head_dim + i * V::N)).mul(V::splat(fade[r]));
                }
            }
            let together = W::Factor::NUMBERS;
            for (step, key) in (0..seen.count).step_by(together).enumerate() {
                // The keys of the next tile come next, as if all of it were seen.
                for key in key..(key + together).min(seen.count) {
                    let k = self.k.wrapping_add((seen.rows[key] as usize + TILE) * self.k_step + column);
                    prefetch::<V, T>(k, WIDTH * V::N);
                }
                let of = |key: usize| self.v.wrapping_add(seen.rows[key] as usize * self.v_step + column);
                let (v, second) = (of(key), (key + 1 < seen.count).then(|| of(key + 1)));
                let mut value = [V::splat(0.0); WIDTH];
                for i in 0..WIDTH {
                    value[i] = W::value(v.add(i * V::N), second.map(|v| v.wrapping_add(i * V::N)));
                }
                for r in 0..ROWS {
                    let weight = V::splat(*self.p.as_ptr().add(step * ROWS + r));
                    for i in 0..WIDTH {
                        acc[r][i] = W::Factor::multiply(weight, value[i], acc[r][i]);
                    }
                }
            }
            for r in 0..ROWS {
                for i in 0..WIDTH {
                    acc[r][i].store(out.add(r * self.head_dim + i * V::N));
                }
            }
        }
    }
}

/// Prefetches `count` numbers.
#[inline(always)]
fn prefetch<V: Lanes, T>(at: *const T, count: usize) {
    for d in (0..count).step_by(LINE / size_of::<T>()) {
        V::prefetch(at.wrapping_add(d));
    }
}
