//! The types in which numbers are stored, and how a vector takes them: widened to f32, or as pairs.

use half::{bf16, f16};

use super::lanes::Lanes;
use super::pairs::{Pairs, pair_of};

/// Two numbers, rounded, in the bits of one f32, the first in the lower half.
pub(super) fn pair(first: f32, second: f32) -> f32 {
    pair_of(bf16::from_f32(first), bf16::from_f32(second))
}

/// To the nearest, halves to even; a NaN stays one. As half's, but the compiler makes vectors of
/// it.
#[inline(always)]
pub(super) fn rounded(x: f32) -> bf16 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if x.is_nan() { quiet } else { nearest } as u16)
}

/// Both numbers of a pair.
pub(super) fn halves(pair: f32) -> [f32; 2] {
    [pair.to_bits() << 16, pair.to_bits() & 0xffff_0000].map(f32::from_bits)
}

/// The sum of both products of two pairs.
pub(super) fn pair_product(a: f32, b: f32) -> f32 {
    halves(a).iter().zip(halves(b)).map(|(a, b)| a * b).sum()
}

/// What a lane of a product's factors holds.
pub(super) trait Factor<V> {
    /// Numbers in a lane.
    const NUMBERS: usize;

    /// `sum` and, in each lane, the product of `a` and `b`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, those for pairs included where lanes hold pairs.
    unsafe fn multiply(a: V, b: V, sum: V) -> V;

    /// The same with one `weight`, but where it is 0 it adds nothing, even if the value is infinite
    /// or NaN.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    unsafe fn add_weighted(weight: f32, value: V, sum: V) -> V;

    /// Puts `count` numbers, whole vectors of them, into such lanes, over the first of them. After
    /// an odd number of vectors another one is read, and not used.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; `numbers` is valid for `count` writes, and for the
    /// reads of an even number of vectors.
    unsafe fn pack(numbers: *mut f32, count: usize);

    /// Two vectors of numbers that follow one another to such lanes, from `to` on.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, those for pairs included where lanes hold pairs;
    /// `to` is valid for the writes of as many vectors as hold these numbers.
    unsafe fn store(first: V, second: V, to: *mut f32);

    /// One vector of numbers to such lanes, from `to` on; lanes of pairs are filled up with 0.
    ///
    /// # Safety
    /// As [`store`](Self::store), for a vector of writes.
    unsafe fn store_one(numbers: V, to: *mut f32);
}

/// One f32.
pub(super) enum One {}

/// A pair of bf16.
pub(super) enum Two {}

impl<V: Lanes> Factor<V> for One {
    const NUMBERS: usize = 1;

    #[inline(always)]
    unsafe fn add_weighted(weight: f32, value: V, sum: V) -> V {
        // SAFETY: the caller promises the instructions.
        if weight == 0.0 { sum } else { unsafe { V::splat(weight) }.mul_add(value, sum) }
    }

    #[inline(always)]
    unsafe fn pack(_: *mut f32, _: usize) {}

    #[inline(always)]
    unsafe fn store(first: V, second: V, to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe {
            first.store(to);
            second.store(to.add(V::N));
        }
    }

    #[inline(always)]
    unsafe fn store_one(numbers: V, to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { numbers.store(to) }
    }

    #[inline(always)]
    unsafe fn multiply(a: V, b: V, sum: V) -> V {
        a.mul_add(b, sum)
    }
}

impl<V: Pairs> Factor<V> for Two {
    const NUMBERS: usize = 2;

    #[inline(always)]
    unsafe fn add_weighted(weight: f32, value: V, sum: V) -> V {
        const HALVES: [u32; 2] = [0xffff, 0xffff_0000];
        let counted = HALVES.into_iter().filter(|half| weight.to_bits() & half != 0).sum();
        // SAFETY: the caller promises the instructions.
        unsafe { sum.dot(V::splat(weight), value.masked(counted)) }
    }

    #[inline(always)]
    unsafe fn pack(numbers: *mut f32, count: usize) {
        // SAFETY: the caller's promises; pairs are written where numbers have been read.
        unsafe {
            for pair in (0..count / 2).step_by(V::N) {
                V::load_paired(numbers.add(2 * pair)).store(numbers.add(pair));
            }
        }
    }

    #[inline(always)]
    unsafe fn store(first: V, second: V, to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { first.paired_with(second).store(to) }
    }

    #[inline(always)]
    unsafe fn store_one(numbers: V, to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { numbers.paired_with(V::splat(0.0)).store(to) }
    }

    #[inline(always)]
    unsafe fn multiply(a: V, b: V, sum: V) -> V {
        // SAFETY: the caller promises the instructions.
        unsafe { sum.dot(a, b) }
    }
}

/// The numbers of a weight, one or a pair a lane.
pub(super) trait Weights<V>: Copy + Send + Sync {
    /// The lanes' kind.
    type Factor: Factor<V>;

    /// A vector of the weight.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; `from` is valid for `V::N` reads.
    unsafe fn load(from: *const Self) -> V;

    /// What stands in a lane.
    fn lane(self) -> f32;

    /// The product with what stands in one lane of the other factor.
    fn times(self, x: f32) -> f32;
}

impl<V: Lanes, T: Stored> Weights<V> for T {
    type Factor = One;

    #[inline(always)]
    unsafe fn load(from: *const Self) -> V {
        // SAFETY: the caller's promises.
        unsafe { <T as Stored>::load(from) }
    }

    #[inline(always)]
    fn lane(self) -> f32 {
        self.widen()
    }

    #[inline(always)]
    fn times(self, x: f32) -> f32 {
        x * self.widen()
    }
}

impl<V: Pairs> Weights<V> for [bf16; 2] {
    type Factor = Two;

    #[inline(always)]
    unsafe fn load(from: *const Self) -> V {
        // SAFETY: the caller's promises; a pair has the size of an f32, and any address will do.
        unsafe { V::load(from.cast()) }
    }

    #[inline(always)]
    fn lane(self) -> f32 {
        pair_of(self[0], self[1])
    }

    #[inline(always)]
    fn times(self, x: f32) -> f32 {
        pair_product(x, Weights::<V>::lane(self))
    }
}

/// A stored number.
pub(super) trait Stored: Copy + Send + Sync {
    /// As many numbers as a vector has, widened.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; `from` is valid for `V::N` reads.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;

    /// One number, widened.
    fn widen(self) -> f32;
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::load(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::load_bf16(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::load_f16(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}
