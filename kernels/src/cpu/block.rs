//! One block of packed numbers: what kinds of it have in common. Numbers are handed out a vector
//! after the other, to memory or to a product.

use half::f16;

use super::lanes::Lanes;

/// A kind of block, in runs of numbers.
pub(super) trait Block {
    const BYTES: usize;
    const NUMBERS: usize;
    /// Numbers of a run, a part of the block's.
    const RUN: usize = 32;

    /// Hands out the numbers of a run, in their order.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; there are `BYTES` bytes and such a run, and `to`
    /// takes its numbers.
    unsafe fn unpack<V: Lanes>(block: &[u8], run: usize, to: &mut impl Sink<V>);
}

/// What takes the numbers of a run, a vector after the other.
pub(super) trait Sink<V> {
    /// Takes those from number `at` of the run on.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; there is room, or whatever the numbers meet.
    unsafe fn take(&mut self, at: usize, numbers: V);
}

/// A number's scale and offset: it is scale · code + offset.
#[derive(Clone, Copy)]
pub(super) struct Affine<V>(V, V);

impl<V: Lanes> Affine<V> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(scale: f32, offset: f32) -> Self {
        // SAFETY: the caller promises the instructions.
        unsafe { Self(V::splat(scale), V::splat(offset)) }
    }

    /// The numbers of codes.
    #[inline(always)]
    pub(super) fn of(self, codes: V) -> V {
        codes.mul_add(self.0, self.1)
    }
}

/// The f16 at some byte of a block.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn half<V: Lanes>(block: &[u8], at: usize) -> f32 {
    // SAFETY: the caller promises the instructions.
    unsafe { V::widen_f16(f16::from_le_bytes([block[at], block[at + 1]])) }
}

/// Where the bits of codes are that do not fit into four.
#[derive(Clone, Copy)]
pub(super) enum Fifth<'a> {
    /// There are none.
    None,
    /// Bit i is that of code i.
    Bits(u32),
    /// Of bytes, one for each code of a run, the bit with the run's number.
    Bytes(&'a [u8], u32),
}

// What works on vectors is no closure: one that is not inlined would lack the instructions.

/// The four bits of each of some bytes from bit `at` on, with a fifth one as `fifth` says for codes
/// from the `first` of the run on.
///
/// # Safety
/// The machine has the instructions of `V`; a fifth bit is there for `V::N` codes.
#[inline(always)]
unsafe fn code<V: Lanes>(bytes: V::Whole, at: u32, fifth: Fifth<'_>, first: usize) -> V {
    let four = V::field(bytes, at, 4);
    // SAFETY: the caller's promises.
    let more = unsafe {
        match fifth {
            Fifth::None => return V::float(four),
            Fifth::Bits(bits) => V::bits(bits, first as u32),
            Fifth::Bytes(bytes, run) => V::field(V::load_bytes(bytes.as_ptr().add(first)), run, 1),
        }
    };
    V::float(V::joined(four, more, 4))
}

/// Codes of four bits: a scale and offset, the bit of a byte with which they begin, and their fifth
/// bits.
#[derive(Clone, Copy)]
pub(super) struct FourBits<'a, V> {
    pub(super) affine: Affine<V>,
    pub(super) at: u32,
    pub(super) fifth: Fifth<'a>,
}

/// Hands out, from `first` on, four bits of each byte as a number.
///
/// # Safety
/// The machine has the instructions of `V`; the bytes are whole vectors, and `to` takes as many
/// numbers there; a fifth bit is there for every code.
#[inline(always)]
pub(super) unsafe fn four_bits<V: Lanes>(bytes: &[u8], kind: FourBits<'_, V>, to: &mut impl Sink<V>, first: usize) {
    for i in (0..bytes.len()).step_by(V::N) {
        // SAFETY: the caller's promises.
        unsafe {
            let codes = code::<V>(V::load_bytes(bytes.as_ptr().add(i)), kind.at, kind.fifth, i);
            to.take(first + i, kind.affine.of(codes));
        }
    }
}

/// Hands out the numbers of the codes of 32 nibbles in a table: those in the low bits of 16 bytes,
/// then those in the high bits.
///
/// # Safety
/// The machine has the instructions of `V`; `to` takes 32 numbers.
#[inline(always)]
pub(super) unsafe fn from_table<V: Lanes>(bytes: &[u8], table: &[i8; 16], scale: f32, to: &mut impl Sink<V>) {
    let bytes = &bytes[..16];
    for high in [false, true] {
        for i in (0..16).step_by(V::N) {
            // SAFETY: the caller's promises; 16 bytes are whole vectors.
            unsafe {
                let numbers = V::looked_up(bytes.as_ptr().add(i), high, table);
                to.take(16 * usize::from(high) + i, numbers.mul(V::splat(scale)));
            }
        }
    }
}

/// The f32 with which a block begins.
#[inline(always)]
pub(super) fn f32_of(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

/// The numbers of codes of four bits that are not evenly apart.
pub(super) const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
