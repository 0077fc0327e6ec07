//! One vector register of f32 of any width: the kernels of this folder are written in it. Here are
//! the trait, the exponential and the portable version; `x86` has AVX2 and AVX-512, `level.rs`
//! chooses.

use half::{bf16, f16};

use crate::packing::e4m3_in_f16;
use crate::{PAD, Positions, Rule, SHARED};

#[cfg(test)]
mod portable_integers;
#[cfg(test)]
mod portable_pairs;

/// Rows of a strip: six rows of four vectors, four vectors of keys and one query value fill the
/// registers of AVX-512.
pub(super) const STRIP: usize = 6;
/// Keys in a panel: the unit in which keys are packed, skipped and masked. A multiple of the width
/// of every vector.
pub(super) const PANEL: usize = 64;
/// Keys in a part of a panel: where a strip sees some keys of a panel, only parts that it may see
/// are multiplied. A multiple of the width of every vector.
pub(super) const PART: usize = 16;
/// Panels in a tile.
pub(super) const TILE_PANELS: usize = 4;
/// Keys in a tile: the row length of the probabilities.
pub(super) const TILE: usize = TILE_PANELS * PANEL;

/// The widest vector: packed rows are padded to it, and a row's running sum has as many parts.
pub(super) const WIDEST: usize = 16;

/// Numbers of a cache line.
pub(super) const LINE: usize = 64 / size_of::<f32>();

/// The causal order and segment of a query row and the begin of its window, which decide the keys
/// that it sees. The order is never `PAD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CausalPosition {
    pub(super) order: u32,
    pub(super) segment: u32,
    /// Whether it sees the other segments and not its own ([`Rule::Others`]). Its order is then the
    /// largest there is.
    pub(super) others: bool,
    /// The lowest rotary position in its window; 0 without a window.
    pub(super) lowest: u32,
}

impl CausalPosition {
    /// Row `i` of the queries, which is not padding.
    pub(super) fn new(at: &Positions, i: usize) -> Self {
        let (order, segment, lowest) = (at.order()[i], at.segment()[i], at.lowest(i));
        match at.rule() {
            Rule::Causal => Self { order, segment, others: false, lowest },
            Rule::Others => Self { order: PAD - 1, segment, others: true, lowest },
        }
    }

    /// Whether the row sees a key with these numbers, by the causal rule.
    #[inline(always)]
    pub(super) fn sees(self, order: u32, segment: u32, rope: u32) -> bool {
        (order <= self.order) & ((segment == self.segment) | (segment == SHARED)) & (rope >= self.lowest)
    }
}

/// A vector of f32. A value proves that the machine has the instructions: it can only come from the
/// unsafe constructors, so a function that takes one by value is safe. Every method inlines into a
/// caller that has the instructions enabled (see [`super::level::dispatch`]).
pub(super) trait Lanes: Copy {
    /// Number of f32.
    const N: usize;
    /// Vectors side by side in a register block of six rows.
    const BLOCK: usize;

    /// Every lane the same.
    ///
    /// # Safety
    /// The machine has the instructions of this type.
    unsafe fn splat(value: f32) -> Self;

    /// `N` values from memory.
    ///
    /// # Safety
    /// The machine has the instructions of this type; `from` is valid for `N` reads.
    unsafe fn load(from: *const f32) -> Self;

    /// `N` values from memory, widened.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn load_bf16(from: *const bf16) -> Self;

    /// `N` values from memory, widened.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn load_f16(from: *const f16) -> Self;

    /// One value, widened.
    ///
    /// # Safety
    /// The machine has the instructions of this type.
    unsafe fn widen_f16(value: f16) -> f32;

    /// `N` small integers from memory, widened.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn load_i8(from: *const i8) -> Self;

    /// `N` numbers in E4M3 from memory, divided by 256.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn load_e4m3(from: *const u8) -> Self;

    /// `N` whole numbers.
    type Whole: Copy;

    /// `N` bytes from memory, each in a lane.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn load_bytes(from: *const u8) -> Self::Whole;

    /// Bit `first + i` in lane i.
    ///
    /// # Safety
    /// The machine has the instructions of this type; `first + N` is at most 32.
    unsafe fn bits(bits: u32, first: u32) -> Self::Whole;

    /// The `count` bits of each lane from bit `first` on, as a number.
    fn field(whole: Self::Whole, first: u32, count: u32) -> Self::Whole;

    /// Each lane of `low` with the bits of `high` from bit `at` on, where it has none.
    fn joined(low: Self::Whole, high: Self::Whole, at: u32) -> Self::Whole;

    /// Each lane as a float.
    fn float(whole: Self::Whole) -> Self;

    /// The numbers of the table that the low four bits of `N` bytes from memory name, or the `high`
    /// ones.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn looked_up(from: *const u8, high: bool, table: &[i8; 16]) -> Self;

    /// `N` values to memory.
    ///
    /// # Safety
    /// `to` is valid for `N` writes.
    unsafe fn store(self, to: *mut f32);

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;

    /// `self · a + b`.
    fn mul_add(self, a: Self, b: Self) -> Self;

    /// The larger of both; `other` where either is NaN.
    fn max(self, other: Self) -> Self;

    fn reduce_max(self) -> f32;

    /// Whether a lane is above the other's, or either is NaN.
    fn any_above(self, other: Self) -> bool;

    /// Lane `i` is the sum of the lanes of vector `i`; there are `N` vectors.
    #[inline(always)]
    fn sum_each(vectors: &[Self]) -> Self {
        Self::sum_parts(Self::sum_fours(vectors))
    }

    /// The first additions of [`sum_each`](Self::sum_each). Lane `4 · b + j` of answer `i` is the
    /// sum of lanes `4 · b` to `4 · b + 3` of vector `4 · i + j`; answers beyond `N / 4` are 0.
    fn sum_fours(vectors: &[Self]) -> [Self; 4];

    /// Its last additions.
    fn sum_parts(parts: [Self; 4]) -> Self;

    /// 2 to the power of each lane: exactly 0 below −127 and for −∞, NaN for NaN, relative error
    /// below 2e-7 elsewhere.
    fn exp2(self) -> Self;

    /// Keeps the lanes whose key `query` sees and puts −∞ into the others. The lists `order`,
    /// `segment` and `rope` describe `N` keys.
    ///
    /// # Safety
    /// The three lists are valid for `N` reads.
    unsafe fn keep_seen(self, keys: [*const u32; 3], query: CausalPosition) -> Self;

    /// Asks for the memory at an address to come into the second-level cache. It need not be valid:
    /// this is a hint. (Weights of one row come a fifth faster than into the first level.)
    fn prefetch<T>(at: *const T);

    /// Asks for memory that is read once and soon to come into the first-level cache alone; as
    /// [`prefetch`](Self::prefetch) else.
    fn prefetch_once<T>(at: *const T);

    /// `to[c][r] = from[r][c]` for `N` rows and columns.
    ///
    /// # Safety
    /// The machine has the instructions of this type. `from` and `to` are valid for `N` rows of `N`
    /// values, the rows `from_step` and `to_step` values apart.
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize);
}

/// 2^f on [−½, ½] without its constant term 1, lowest power first: a minimax fit of the relative
/// error (2e-9 before rounding to f32), found with Remez' exchange. The first happens to round to
/// ln 2.
const EXP2: [f32; 6] =
    [std::f32::consts::LN_2, 0.240_226_47, 0.055_503_29, 0.009_618_489, 0.001_339_993_1, 0.000_153_458_17];

/// 2^f for `f` in [−½, ½].
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn exp2_fraction<V: Lanes>(f: V) -> V {
    // SAFETY: the caller promises the instructions of `V`.
    unsafe {
        let mut value = V::splat(EXP2[5]);
        for i in (0..5).rev() {
            value = value.mul_add(f, V::splat(EXP2[i]));
        }
        value.mul_add(f, V::splat(1.0))
    }
}

/// Asks for the lines of `bytes` bytes from an address on, which need not be valid.
#[inline(always)]
pub(super) fn prefetch_bytes<V: Lanes>(from: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE * size_of::<f32>()).for_each(|line| V::prefetch(from.wrapping_add(line)));
}

/// Eight f32 that the compiler spreads over the target's vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Lanes for Portable {
    const N: usize = 8;
    const BLOCK: usize = 1;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller promises `N` readable values.
        Self(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller promises `N` readable values; an array of bf16 has the alignment of
        // bf16.
        let narrow = unsafe { from.cast::<[bf16; 8]>().read() };
        Self(narrow.map(|value| f32::from_bits(u32::from(value.to_bits()) << 16)))
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the caller promises `N` readable values; an array of f16 has the alignment of
        // f16.
        let narrow = unsafe { from.cast::<[f16; 8]>().read() };
        Self(narrow.map(f16::to_f32))
    }

    #[inline(always)]
    unsafe fn widen_f16(value: f16) -> f32 {
        value.to_f32()
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller promises `N` readable values.
        Self(unsafe { from.cast::<[i8; 8]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: the caller promises `N` readable values.
        Self(unsafe { from.cast::<[u8; 8]>().read() }.map(|code| e4m3_in_f16(code).to_f32()))
    }

    type Whole = [u32; 8];

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> [u32; 8] {
        // SAFETY: the caller promises `N` readable values.
        unsafe { from.cast::<[u8; 8]>().read() }.map(u32::from)
    }

    #[inline(always)]
    unsafe fn bits(bits: u32, first: u32) -> [u32; 8] {
        std::array::from_fn(|i| bits >> first >> i & 1)
    }

    #[inline(always)]
    fn field(whole: [u32; 8], first: u32, count: u32) -> [u32; 8] {
        whole.map(|lane| lane >> first & ((1 << count) - 1))
    }

    #[inline(always)]
    fn joined(low: [u32; 8], high: [u32; 8], at: u32) -> [u32; 8] {
        std::array::from_fn(|i| low[i] | high[i] << at)
    }

    #[inline(always)]
    fn float(whole: [u32; 8]) -> Self {
        Self(whole.map(|lane| lane as f32))
    }

    #[inline(always)]
    unsafe fn looked_up(from: *const u8, high: bool, table: &[i8; 16]) -> Self {
        // SAFETY: the caller promises `N` readable values.
        let bytes = unsafe { from.cast::<[u8; 8]>().read() };
        Self(bytes.map(|byte| f32::from(table[usize::from(if high { byte >> 4 } else { byte & 15 })])))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller promises `N` writable values; an array of f32 has the alignment of
        // f32.
        unsafe { to.cast::<[f32; 8]>().write(self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        // A fused operation only where every machine of the target has one; elsewhere it would be a
        // library call.
        if cfg!(target_arch = "aarch64") {
            return Self(std::array::from_fn(|i| self.0[i].mul_add(a.0[i], b.0[i])));
        }
        Self(std::array::from_fn(|i| self.0[i] * a.0[i] + b.0[i]))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn any_above(self, other: Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a.partial_cmp(b).is_none_or(|order| order.is_gt()))
    }

    #[inline(always)]
    fn sum_fours(vectors: &[Self]) -> [Self; 4] {
        assert_eq!(vectors.len(), Self::N, "vectors to add up");
        let sum = |i: usize, lane: usize| vectors[4 * i + lane % 4].0[lane / 4 * 4..][..4].iter().sum();
        let part = |i: usize| Self(std::array::from_fn(|lane| sum(i, lane)));
        [part(0), part(1), Self([0.0; 8]), Self([0.0; 8])]
    }

    #[inline(always)]
    fn sum_parts([first, second, ..]: [Self; 4]) -> Self {
        let both = [first.0, second.0];
        Self(std::array::from_fn(|i| both[i / 4][i % 4] + both[i / 4][4 + i % 4]))
    }

    #[inline(always)]
    fn exp2(self) -> Self {
        /// Adding and subtracting 1.5·2²³ rounds to a whole number, which is then in the lowest
        /// bits.
        const ROUND: f32 = 12_582_912.0;
        let clamped =
            Self(self.0.map(|x| if x < -127.0 { -127.0 } else { x }).map(|x| if x > 128.0 { 128.0 } else { x }));
        let shifted = Self(clamped.0.map(|x| x + ROUND));
        let fraction = Self(std::array::from_fn(|i| clamped.0[i] - (shifted.0[i] - ROUND)));
        // SAFETY: the portable version needs no special instructions.
        let value = unsafe { exp2_fraction(fraction) };
        // A whole part of −127 has the bits of 0.
        let power =
            shifted.0.map(|x| f32::from_bits(x.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23));
        value.mul(Self(power))
    }

    #[inline(always)]
    unsafe fn keep_seen(self, keys: [*const u32; 3], query: CausalPosition) -> Self {
        Self(std::array::from_fn(|i| {
            // SAFETY: the caller promises `N` readable entries, and i < N.
            let [order, segment, rope] = keys.map(|list| unsafe { *list.add(i) });
            let in_sight = (segment == query.segment) != query.others;
            let seen = (order <= query.order) & (in_sight | (segment == SHARED)) & (rope >= query.lowest);
            if seen { self.0[i] } else { f32::NEG_INFINITY }
        }))
    }

    #[inline(always)]
    fn prefetch<T>(_at: *const T) {}

    #[inline(always)]
    fn prefetch_once<T>(_at: *const T) {}

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: the caller promises eight rows and columns on both sides.
                unsafe { *to.add(column * to_step + row) = *from.add(row * from_step + column) };
            }
        }
    }
}
