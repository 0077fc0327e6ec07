//! The inner part of attention of one query row: a walk over rows of a block, a tile at a time. The
//! heads that share a KV head go together, up to four of them, so that a key is widened once for
//! all.
//!
//! A vector of scores holds every head of the bundle for as many keys as there is room for, two
//! keys of a head beside each other: lane `(key / 2 · rows + row) · 2 + key mod 2`.
//!
//! A step of decoding reads its keys and values once, so their memory bounds it. Those of a later
//! tile are prefetched in the order in which they lie: keys during the scores, values during the
//! sums over values. Where a few rows fill no more than a page, they come into the first-level
//! cache alone; other tiles have at least eight rows, and the later one's come into the
//! second-level cache.

// Loops over register blocks count, so that they read like the products they are and unroll whole.
#![allow(clippy::needless_range_loop)]

use half::bf16;

use super::inputs::Matrix;
use super::lanes::{CausalPosition, Lanes, WIDEST};
use super::level::{Kernel, PairKernel};
use super::pack::Aligned;
use super::pairs::Pairs;
use super::stored::{Factor, One, Stored, Two};
use super::strip::LOWEST;

/// Most keys that are looked at together.
const TILE: usize = 32;
/// Least keys that are looked at together, where rows are long.
const LEAST_KEYS: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of keys, and of values, from a tile to the rows that are prefetched meanwhile, at least:
/// into the first-level cache, and into the second.
const AHEAD_BYTES: [usize; 2] = [4096, 8192];
/// Most bytes of the keys, or values, of a tile whose next one is prefetched into the first-level
/// cache: both of both tiles have half of 32 KiB.
const NEAR_BYTES: usize = 4096;
/// Heads that are taken together. Twice this number divides the width of every vector.
pub(super) const MOST_ROWS: usize = 4;

/// One, two or [`MOST_ROWS`] heads that share a KV head, and their softmax so far.
pub(super) struct Heads {
    pub(super) kv_head: usize,
    /// The first one among the packed heads.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Largest score so far; lane `i` is of row `i / 2 mod rows`.
    top: [f32; WIDEST],
    /// Parts of the sum of 2^(score − top); lanes alike.
    sum: [f32; WIDEST],
}

impl Heads {
    pub(super) fn new(kv_head: usize, first: usize, rows: usize) -> Self {
        Self { kv_head, first, rows, top: [LOWEST; WIDEST], sum: [0.0; WIDEST] }
    }

    pub(super) fn top_of(&self, row: usize) -> f32 {
        self.top[2 * row]
    }

    pub(super) fn sum_of(&self, row: usize) -> f32 {
        self.sum.chunks_exact(2).skip(row).step_by(self.rows).flatten().sum()
    }

    /// Raises the largest scores to those that were found; returns by what the sums of each row
    /// shrink.
    #[inline(always)]
    fn raise<V: Lanes, const ROWS: usize>(&mut self, found: V) -> [f32; MOST_ROWS] {
        let mut lanes = [LOWEST; WIDEST];
        // SAFETY: WIDEST lanes are at least a vector, and `found` proves the instructions.
        unsafe {
            found.store(lanes.as_mut_ptr());
            let old = V::load(self.top.as_ptr());
            let mut top = [LOWEST; MOST_ROWS];
            for lane in 0..WIDEST {
                let row = lane / 2 % ROWS;
                top[row] = top[row].max(lanes[lane]).max(self.top[lane]);
            }
            for lane in 0..WIDEST {
                self.top[lane] = top[lane / 2 % ROWS];
            }
            let fade = old.sub(V::load(self.top.as_ptr())).exp2();
            V::load(self.sum.as_ptr()).mul(fade).store(self.sum.as_mut_ptr());
            fade.store(lanes.as_mut_ptr());
        }
        std::array::from_fn(|row| lanes[2 * row % WIDEST])
    }
}

/// The working memory of a task.
pub(super) struct Scratch {
    /// Sum of 2^(score − top) · value, as the queries are packed.
    pub(super) out: Aligned,
    /// Scores, then probabilities, of a bundle's tile, `[TILE / 2, rows, 2]`; of pairs, those of
    /// two keys in a lane, `[TILE / 2, rows]`.
    p: Aligned,
}

impl Scratch {
    /// Scratch for `len` values of packed queries. Packing pairs reads a vector beyond the scores.
    pub(super) fn new(len: usize) -> Self {
        Self { out: Aligned::new(len), p: Aligned::new(TILE * MOST_ROWS + 2 * WIDEST) }
    }
}

/// Rows of a block, from `first` on as many as there are orders, taken into the result of every
/// bundle.
pub(super) struct Walk<'a, T> {
    pub(super) k: (&'a [T], Matrix<'a>),
    pub(super) v: (&'a [T], Matrix<'a>),
    pub(super) first: usize,
    /// Causal order, segment and rotary position of each of these rows.
    pub(super) at: [&'a [u32]; 3],
    /// The query's causal position.
    pub(super) place: CausalPosition,
    pub(super) head_dim: usize,
    /// Packed queries, `[.., head_dim]`, or half as many pairs.
    pub(super) q: &'a [f32],
    pub(super) heads: &'a mut [Heads],
    pub(super) scratch: &'a mut Scratch,
}

/// What a tile's bundles prefetch: each a share of a later tile's keys and values, in lines.
struct Ahead {
    /// From a tile to the later one.
    bytes: usize,
    /// Whether it comes into the first-level cache.
    near: bool,
    /// Lines of a share, 0 if nothing is prefetched.
    share: usize,
    /// Lines of keys for each vector of scores, and of values for each step of their sums.
    lines: [usize; 2],
}

impl Ahead {
    /// For tiles of some rows of some bytes and this number of bundles; none if that is 0.
    /// `at_a_time` keys make a vector of scores, and a step of the sums over values.
    fn new((tile, row_bytes): (usize, usize), bundles: usize, at_a_time: [usize; 2]) -> Self {
        let bytes = tile * row_bytes;
        let share = if bundles == 0 { 0 } else { bytes.div_ceil(LINE * bundles) };
        let lines = at_a_time.map(|keys| share.div_ceil(tile.div_ceil(keys)));
        let near = bytes <= NEAR_BYTES;
        Self { bytes: AHEAD_BYTES[usize::from(!near)].next_multiple_of(bytes), near, share, lines }
    }

    /// Bytes from a tile to the share of this bundle.
    fn from(&self, bundle: usize) -> usize {
        self.bytes + bundle * self.share * LINE
    }
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
        let Self { k, v, first, at, place, head_dim, q, heads, scratch } = self;
        let depth = head_dim / W::Factor::NUMBERS;
        let count = at[0].len();
        assert!(at.iter().all(|list| list.len() == count), "orders, segments and positions");
        assert_eq!(depth % V::N, 0, "whole vectors");
        let last = first + count.saturating_sub(1);
        for heads in heads.iter() {
            assert!(matches!(heads.rows, 1 | 2 | MOST_ROWS), "{} heads at a time", heads.rows);
            assert!((heads.first + heads.rows) * depth <= q.len(), "packed queries");
            assert!((heads.first + heads.rows) * head_dim <= scratch.out.get().len(), "room for the result");
            assert!(k.1.place(last, heads.kv_head) + head_dim <= k.0.len(), "keys");
            assert!(v.1.place(last, heads.kv_head) + head_dim <= v.0.len(), "values");
        }
        // The tile follows from the heads and their type, not from strides, so that the bits of a
        // result do not depend on the layout.
        let row = heads.iter().map(|heads| heads.kv_head + 1).max().unwrap_or(1) * head_dim;
        let keys = heads.iter().map(|heads| V::N / heads.rows).max().unwrap_or(1);
        let row_bytes = (row * size_of::<T>()).max(1);
        let [near, far] = W::TILE_BYTES.map(|bytes| (bytes / row_bytes).min(TILE));
        let (near, far) = (near.max(1).next_multiple_of(keys), far.max(LEAST_KEYS).next_multiple_of(keys));
        let tile = if near * row_bytes <= NEAR_BYTES { near } else { far };
        let lie_together = [k.1, v.1].iter().all(|matrix| matrix.row_step() == row);
        let at_a_time = [keys, W::Factor::NUMBERS];
        let ahead = Ahead::new((tile, row_bytes), if lie_together { heads.len() } else { 0 }, at_a_time);
        for from in (0..count).step_by(tile) {
            let start = first + from;
            let seen = Seen::of(start, at.map(|list| &list[from..count.min(from + tile)]), place);
            if seen.count == 0 {
                continue;
            }
            for (number, heads) in heads.iter_mut().enumerate() {
                let asked = |(numbers, matrix): (&[T], Matrix<'_>)| {
                    numbers.as_ptr().wrapping_add(matrix.place(start, 0)).wrapping_byte_add(ahead.from(number))
                };
                let bundle = Bundle {
                    ahead: [asked(k), asked(v)],
                    near: ahead.near,
                    lines: ahead.lines,
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
    fn of(first: usize, at: [&[u32]; 3], place: CausalPosition) -> Self {
        let [order, segment, rope] = at;
        let keys = order.iter().zip(segment);
        // Most rows have no window: then positions are not read.
        match place.lowest {
            0 => Self::those(first, keys, |(&order, &segment)| place.sees(order, segment, 0)),
            _ => Self::those(first, keys.zip(rope), |((&order, &segment), &rope)| place.sees(order, segment, rope)),
        }
    }

    /// The row of a key that was seen.
    #[inline(always)]
    fn row(&self, key: usize) -> usize {
        self.rows[key % TILE] as usize // without a check of bounds
    }

    #[inline(always)]
    fn those<K>(first: usize, keys: impl ExactSizeIterator<Item = K> + Clone, sees: impl Fn(K) -> bool) -> Self {
        let mut rows = [0; TILE];
        let all = keys.len();
        if keys.clone().fold(true, |seen, key| seen & sees(key)) {
            rows.iter_mut().enumerate().for_each(|(i, row)| *row = (first + i) as u32);
            return Self { rows, count: all };
        }
        let mut count = 0;
        for (i, key) in keys.enumerate() {
            rows[count] = (first + i) as u32;
            count += usize::from(sees(key));
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
    /// Keys and values that are asked for meanwhile, and how many lines of each at a time.
    ahead: [*const T; 2],
    /// Whether they come into the first-level cache.
    near: bool,
    lines: [usize; 2],
    head_dim: usize,
    q: &'a [f32],
    p: &'a mut [f32],
    out: &'a mut [f32],
}

/// How keys and values are read and multiplied.
trait Way<V: Lanes, T> {
    /// Bytes of the rows of a tile, about: of one whose next one comes into the first-level cache,
    /// and of another, a page, or two where a tile of a page has little work.
    const TILE_BYTES: [usize; 2];

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

    /// Packs probabilities, `[pairs, rows, 2]`, which fill some vectors, as such values are.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; `p` holds as many vectors, and one more.
    unsafe fn pack(p: &mut [f32], vectors: usize);

    /// Where the weight of a step over the values stands: `(step, row, rows)`.
    fn weight(step: usize, row: usize, rows: usize) -> usize;
}

/// Numbers are widened to f32.
enum Wide {}

/// Neighbours in a key, and the values of two keys, are multiplied as pairs.
enum Paired {}

impl<V: Lanes, T: Stored> Way<V, T> for Wide {
    const TILE_BYTES: [usize; 2] = [2048, 4096];
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
    unsafe fn pack(_: &mut [f32], _: usize) {}

    #[inline(always)]
    fn weight(step: usize, row: usize, rows: usize) -> usize {
        (step / 2 * rows + row) * 2 + step % 2
    }
}

impl<V: Pairs> Way<V, bf16> for Paired {
    const TILE_BYTES: [usize; 2] = [4096, 8192];
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
    unsafe fn pack(p: &mut [f32], vectors: usize) {
        for pair in 0..vectors.div_ceil(2) {
            // SAFETY: the caller's promises; what is written has been read.
            unsafe { V::load_paired(p.as_ptr().add(2 * pair * V::N)).store(p.as_mut_ptr().add(pair * V::N)) }
        }
    }

    #[inline(always)]
    fn weight(step: usize, row: usize, rows: usize) -> usize {
        step * rows + row
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
            let found = self.scores::<V, W, ROWS>(seen, old);
            // Most tiles find nothing larger.
            let fade = if found.any_above(old) { heads.raise::<V, ROWS>(found) } else { [1.0; MOST_ROWS] };
            let top = V::load(heads.top.as_ptr());
            let mut sum = V::load(heads.sum.as_ptr());
            let vectors = (seen.count.next_multiple_of(2) * ROWS).div_ceil(V::N);
            for vector in 0..vectors {
                let p = self.p.as_mut_ptr().add(vector * V::N);
                let value = V::load(p).sub(top).exp2();
                value.store(p);
                sum = sum.add(value);
            }
            sum.store(heads.sum.as_mut_ptr());
            W::pack(self.p, vectors);
            self.values::<V, W, ROWS>(seen, &fade);
        }
    }

    /// Asks for the next lines of the keys ahead (0) or of the values (1), between the work:
    /// requests to memory then follow one another evenly.
    #[inline(always)]
    fn prefetch<V: Lanes>(&mut self, which: usize) {
        for _ in 0..self.lines[which] {
            match self.near {
                true => V::prefetch_once(self.ahead[which]),
                false => V::prefetch(self.ahead[which]),
            }
            self.ahead[which] = self.ahead[which].wrapping_byte_add(LINE);
        }
    }

    /// Writes the scores of the rows that were seen to `p`; takes their maximum into `top`.
    ///
    /// # Safety
    /// As [`absorb`](Self::absorb).
    #[inline(always)]
    unsafe fn scores<V: Lanes, W: Way<V, T>, const ROWS: usize>(&mut self, seen: &Seen, mut top: V) -> V {
        let keys = V::N / ROWS;
        // SAFETY: the caller's promise.
        let mut parts = unsafe { [V::splat(0.0); 4] };
        for (vector, first) in (0..seen.count).step_by(keys).enumerate() {
            let (mut k, is_whole) = ([self.k; WIDEST], first + keys <= seen.count);
            for i in 0..keys {
                // The last one again where there are no more.
                let key = if is_whole { first + i } else { (first + i).min(seen.count - 1) };
                k[i] = self.k.wrapping_add(seen.row(key) * self.k_step);
            }
            self.prefetch::<V>(0);
            // SAFETY: the caller's promises; the bundle has ROWS heads of `head_dim`, and a lane
            // is below N.
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
                            let lane = (i / 2 * ROWS + r) * 2 + i % 2;
                            acc[lane] = W::Factor::multiply(q[r], key, acc[lane]);
                        }
                    }
                }
                // The last additions of a vector wait for each other: those of the one before come
                // now, beside this one's products.
                let before = std::mem::replace(&mut parts, V::sum_fours(&acc[..V::N]));
                if vector > 0 {
                    top = top.max(self.put::<V, ROWS>(vector - 1, before, keys));
                }
            }
        }
        let last = (seen.count - 1) / keys;
        // SAFETY: the caller's promises.
        unsafe { top.max(self.put::<V, ROWS>(last, parts, seen.count - last * keys)) }
    }

    /// Writes a vector of scores to `p`, −∞ for the keys from `count` on. Returns it.
    ///
    /// # Safety
    /// As [`absorb`](Self::absorb); `p` has room for the vector.
    #[inline(always)]
    unsafe fn put<V: Lanes, const ROWS: usize>(&mut self, vector: usize, parts: [V; 4], count: usize) -> V {
        // SAFETY: the caller's promises; a lane is below N.
        unsafe {
            let (p, scores) = (self.p.as_mut_ptr().add(vector * V::N), V::sum_parts(parts));
            scores.store(p);
            if count == V::N / ROWS {
                return scores;
            }
            for key in count..V::N / ROWS {
                for r in 0..ROWS {
                    *p.add((key / 2 * ROWS + r) * 2 + key % 2) = f32::NEG_INFINITY;
                }
            }
            V::load(p)
        }
    }

    /// `out = out · fade + p · v` over the rows that were seen.
    ///
    /// # Safety
    /// As [`absorb`](Self::absorb).
    #[inline(always)]
    unsafe fn values<V: Lanes, W: Way<V, T>, const ROWS: usize>(&mut self, seen: &Seen, fade: &[f32; MOST_ROWS]) {
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
        fade: &[f32; MOST_ROWS],
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
                if column == 0 {
                    self.prefetch::<V>(1);
                }
                let of = |key: usize| self.v.wrapping_add(seen.row(key) * self.v_step + column);
                let (v, second) = (of(key), (key + 1 < seen.count).then(|| of(key + 1)));
                let mut value = [V::splat(0.0); WIDTH];
                for i in 0..WIDTH {
                    value[i] = W::value(v.add(i * V::N), second.map(|v| v.wrapping_add(i * V::N)));
                }
                for r in 0..ROWS {
                    let weight = V::splat(*self.p.as_ptr().add(W::weight(step, r, ROWS)));
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
