//! Blocks of packed numbers, unpacked to f32. The layouts are those of ggml (`ggml-common.h`,
//! `ggml-quants.c`), and some of our own.

use std::marker::PhantomData;

use super::block::{Affine, Block, Fifth, FourBits, Sink, UNEVEN, f32_of, four_bits, from_table, half};
use super::lanes::Lanes;
use super::level::{Kernel, Level, dispatch};
use super::super_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use crate::Packing;

/// Unpacks whole blocks.
///
/// # Panics
/// Panics if there is not room for exactly their numbers.
pub(super) fn unpack(level: Level, packing: Packing, blocks: &[u8], to: &mut [f32]) {
    let count = blocks.len() / packing.bytes();
    assert_eq!(blocks.len(), count * packing.bytes(), "bytes of whole blocks");
    assert_eq!(to.len(), count * packing.numbers(), "room for their numbers");
    with_blocks(packing, Unpack { level, blocks, to });
}

/// Work that is written once for all kinds of block.
pub(super) trait OnBlocks {
    fn run<B: Block>(self);
}

/// Does the work for the kind of block that a packing has.
pub(super) fn with_blocks(packing: Packing, work: impl OnBlocks) {
    match packing {
        Packing::Q4_0 => work.run::<Q4_0>(),
        Packing::Q4_1 => work.run::<Q4_1>(),
        Packing::Q5_0 => work.run::<Q5_0>(),
        Packing::Q5_1 => work.run::<Q5_1>(),
        Packing::Q8_0 => work.run::<Q8_0>(),
        Packing::Q2K => work.run::<Q2K>(),
        Packing::Q3K => work.run::<Q3K>(),
        Packing::Q4K => work.run::<Q4K>(),
        Packing::Q5K => work.run::<Q5K>(),
        Packing::Q6K => work.run::<Q6K>(),
        Packing::Iq4Nl => work.run::<Iq4Nl>(),
        Packing::Iq4Xs => work.run::<Iq4Xs>(),
        Packing::Mxfp4 => work.run::<Mxfp4>(),
        Packing::Fp8 => work.run::<Fp8<32>>(),
        Packing::Int8 => work.run::<Int8<32>>(),
        Packing::Int4 => work.run::<Int4>(),
        Packing::Fp8G128 => work.run::<Fp8<128>>(),
        Packing::Int8G128 => work.run::<Int8<128>>(),
        Packing::Int4G128 => work.run::<Int4G128>(),
    }
}

/// Memory for a run's numbers.
struct Room(*mut f32);

impl<V: Lanes> Sink<V> for Room {
    #[inline(always)]
    unsafe fn take(&mut self, at: usize, numbers: V) {
        // SAFETY: the caller's promises: the memory is valid for a run's numbers.
        unsafe { numbers.store(self.0.add(at)) }
    }
}

struct Unpack<'a> {
    level: Level,
    blocks: &'a [u8],
    to: &'a mut [f32],
}

impl OnBlocks for Unpack<'_> {
    fn run<B: Block>(self) {
        dispatch(self.level, UnpackAll::<B> { blocks: self.blocks, to: self.to, kind: PhantomData });
    }
}

struct UnpackAll<'a, B> {
    blocks: &'a [u8],
    to: &'a mut [f32],
    kind: PhantomData<B>,
}

impl<B: Block> Kernel for UnpackAll<'_, B> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (block, to) in self.blocks.chunks_exact(B::BYTES).zip(self.to.chunks_exact_mut(B::NUMBERS)) {
            for (run, to) in to.chunks_exact_mut(B::RUN).enumerate() {
                // SAFETY: the caller promises the instructions; chunks have these lengths.
                unsafe { B::unpack::<V>(block, run, &mut Room(to.as_mut_ptr())) }
            }
        }
    }
}

/// 32 codes of four bits, with a fifth one each if there are bits of them.
///
/// # Safety
/// The machine has the instructions of `V`; `to` takes 32 numbers.
#[inline(always)]
unsafe fn simple<V: Lanes>(bytes: &[u8], fifth: Option<u32>, [scale, offset]: [f32; 2], to: &mut impl Sink<V>) {
    for half in 0..2 {
        // Those in the low bits of all bytes come first.
        let fifth = fifth.map_or(Fifth::None, |bits| Fifth::Bits(bits >> (16 * half)));
        // SAFETY: the caller's promises.
        unsafe {
            let kind = FourBits { affine: Affine::<V>::new(scale, offset), at: 4 * half, fifth };
            four_bits(&bytes[..16], kind, to, 16 * half as usize);
        }
    }
}

/// Four bytes as the bits of 32 codes.
#[inline(always)]
fn fifth_bits(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

struct Q4_0;
impl Block for Q4_0 {
    const BYTES: usize = 18;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe {
            let scale = half::<V>(block, 0);
            simple::<V>(&block[2..], None, [scale, -8.0 * scale], to);
        }
    }
}

struct Q4_1;
impl Block for Q4_1 {
    const BYTES: usize = 20;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe { simple::<V>(&block[4..], None, [half::<V>(block, 0), half::<V>(block, 2)], to) }
    }
}

struct Q5_0;
impl Block for Q5_0 {
    const BYTES: usize = 22;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe {
            let scale = half::<V>(block, 0);
            simple::<V>(&block[6..], fifth_bits(&block[2..6]), [scale, -16.0 * scale], to);
        }
    }
}

struct Q5_1;
impl Block for Q5_1 {
    const BYTES: usize = 24;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe {
            let both = [half::<V>(block, 0), half::<V>(block, 2)];
            simple::<V>(&block[8..], fifth_bits(&block[4..8]), both, to);
        }
    }
}

struct Int4;
impl Block for Int4 {
    const BYTES: usize = 21;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
        let scale = f32_of(block);
        // SAFETY: the caller's promises.
        unsafe { simple::<V>(&block[5..], None, [scale, -scale * f32::from(block[4])], to) }
    }
}

struct Int4G128;
impl Block for Int4G128 {
    const BYTES: usize = 72;
    const NUMBERS: usize = 128;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe { simple::<V>(&block[8 + 16 * run..], None, [f32_of(block), f32_of(&block[4..])], to) }
    }
}

/// 32 codes of eight bits with a sign.
///
/// # Safety
/// The machine has the instructions of `V`; `to` takes 32 numbers.
#[inline(always)]
unsafe fn bytes<V: Lanes>(codes: &[u8], scale: f32, to: &mut impl Sink<V>) {
    let codes = &codes[..32];
    // SAFETY: the caller's promises; 32 codes are whole vectors.
    unsafe {
        let scale = V::splat(scale);
        for i in (0..32).step_by(V::N) {
            to.take(i, V::load_i8(codes.as_ptr().add(i).cast()).mul(scale));
        }
    }
}

struct Q8_0;
impl Block for Q8_0 {
    const BYTES: usize = 34;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe { bytes::<V>(&block[2..], half::<V>(block, 0), to) }
    }
}

/// Codes of eight bits with a sign, a multiple of 32.
struct Int8<const NUMBERS: usize>;
impl<const NUMBERS: usize> Block for Int8<NUMBERS> {
    const BYTES: usize = 4 + NUMBERS;
    const NUMBERS: usize = NUMBERS;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe { bytes::<V>(&block[4 + 32 * run..], f32_of(block), to) }
    }
}

/// Codes in E4M3, a multiple of 32.
struct Fp8<const NUMBERS: usize>;
impl<const NUMBERS: usize> Block for Fp8<NUMBERS> {
    const BYTES: usize = 4 + NUMBERS;
    const NUMBERS: usize = NUMBERS;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], run: usize, to: &mut impl Sink<V>) {
        let codes = &block[4 + 32 * run..][..32];
        // SAFETY: the caller's promises; 32 numbers are whole vectors.
        unsafe {
            let scale = V::splat(f32_of(block) * 256.0);
            for i in (0..32).step_by(V::N) {
                to.take(i, V::load_e4m3(codes.as_ptr().add(i)).mul(scale));
            }
        }
    }
}

struct Iq4Nl;
impl Block for Iq4Nl {
    const BYTES: usize = 18;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe { from_table::<V>(&block[2..], &UNEVEN, half::<V>(block, 0), to) }
    }
}

/// The numbers of E2M1, twice each.
pub(super) const E2M1_TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 2 to the power of a code of E8M0, which is − 127; the code of no number gives NaN.
#[inline(always)]
pub(super) fn power(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000), // below the smallest normal number
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

struct Mxfp4;
impl Block for Mxfp4 {
    const BYTES: usize = 17;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe { from_table::<V>(&block[1..], &E2M1_TWICE, power(block[0]) / 2.0, to) }
    }
}
