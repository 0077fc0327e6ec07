//! Blocks of packed numbers, unpacked to f32. The layouts are those of ggml (`ggml-common.h`,
//! `ggml-quants.c`), and some of our own.

use std::marker::PhantomData;

use half::f16;

use super::lanes::Lanes;
use super::level::{Kernel, Level, dispatch};
use crate::Packing;

/// Unpacks whole blocks.
///
/// # Panics
/// Panics if there is not room for exactly their numbers.
pub(super) fn unpack(level: Level, packing: Packing, blocks: &[u8], to: &mut [f32]) {
    let count = blocks.len() / packing.bytes();
    assert_eq!(blocks.len(), count * packing.bytes(), "bytes of whole blocks");
    assert_eq!(to.len(), count * packing.numbers(), "room for their numbers");
    match packing {
        Packing::Q4_0 => dispatch(level, Unpack::<Q4_0>::new(blocks, to)),
        Packing::Q4_1 => dispatch(level, Unpack::<Q4_1>::new(blocks, to)),
        Packing::Q5_0 => dispatch(level, Unpack::<Q5_0>::new(blocks, to)),
        Packing::Q5_1 => dispatch(level, Unpack::<Q5_1>::new(blocks, to)),
        Packing::Q8_0 => dispatch(level, Unpack::<Q8_0>::new(blocks, to)),
        Packing::Q2K => dispatch(level, Unpack::<Q2K>::new(blocks, to)),
        Packing::Q3K => dispatch(level, Unpack::<Q3K>::new(blocks, to)),
        Packing::Q4K => dispatch(level, Unpack::<Q4K>::new(blocks, to)),
        Packing::Q5K => dispatch(level, Unpack::<Q5K>::new(blocks, to)),
        Packing::Q6K => dispatch(level, Unpack::<Q6K>::new(blocks, to)),
        Packing::Iq4Nl => dispatch(level, Unpack::<Iq4Nl>::new(blocks, to)),
        Packing::Iq4Xs => dispatch(level, Unpack::<Iq4Xs>::new(blocks, to)),
        Packing::Mxfp4 => dispatch(level, Unpack::<Mxfp4>::new(blocks, to)),
        Packing::Fp8 => dispatch(level, Unpack::<Fp8<32>>::new(blocks, to)),
        Packing::Int8 => dispatch(level, Unpack::<Int8<32>>::new(blocks, to)),
        Packing::Int4 => dispatch(level, Unpack::<Int4>::new(blocks, to)),
        Packing::Fp8G128 => dispatch(level, Unpack::<Fp8<128>>::new(blocks, to)),
        Packing::Int8G128 => dispatch(level, Unpack::<Int8<128>>::new(blocks, to)),
        Packing::Int4G128 => dispatch(level, Unpack::<Int4G128>::new(blocks, to)),
    }
}

/// A kind of block.
trait Block {
    const BYTES: usize;
    const NUMBERS: usize;

    /// Writes the numbers of a block.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; there are `BYTES` bytes, and `to` is valid for
    /// `NUMBERS` writes.
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32);
}

struct Unpack<'a, B> {
    blocks: &'a [u8],
    to: &'a mut [f32],
    kind: PhantomData<B>,
}

impl<'a, B> Unpack<'a, B> {
    fn new(blocks: &'a [u8], to: &'a mut [f32]) -> Self {
        Self { blocks, to, kind: PhantomData }
    }
}

impl<B: Block> Kernel for Unpack<'_, B> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (block, to) in self.blocks.chunks_exact(B::BYTES).zip(self.to.chunks_exact_mut(B::NUMBERS)) {
            // SAFETY: the caller promises the instructions; chunks have these lengths.
            unsafe { B::unpack::<V>(block, to.as_mut_ptr()) }
        }
    }
}

/// A number's scale and offset: it is scale · code + offset.
#[derive(Clone, Copy)]
struct Affine<V>(V, V);

impl<V: Lanes> Affine<V> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn new(scale: f32, offset: f32) -> Self {
        // SAFETY: the caller promises the instructions.
        unsafe { Self(V::splat(scale), V::splat(offset)) }
    }

    /// Writes the numbers of codes.
    ///
    /// # Safety
    /// `to` is valid for `V::N` writes.
    #[inline(always)]
    unsafe fn write(self, codes: V, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { codes.mul_add(self.0, self.1).store(to) }
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
enum Fifth<'a> {
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
            Fifth::Bits(bits) => V::bits(bits >> first),
            Fifth::Bytes(bytes, run) => V::field(V::load_bytes(bytes.as_ptr().add(first)), run, 1),
        }
    };
    V::float(V::joined(four, more, 4))
}

/// Writes the low four bits of each of `COUNT` bytes as a number, then the high ones, each half
/// with a scale and offset, and a fifth bit, of its own.
///
/// # Safety
/// The machine has the instructions of `V`; `to` is valid for 2 · `COUNT` writes; a fifth bit is
/// there for every code.
#[inline(always)]
unsafe fn nibbles<V: Lanes, const COUNT: usize>(
    bytes: &[u8],
    [low, high]: [Affine<V>; 2],
    [low_fifth, high_fifth]: [Fifth<'_>; 2],
    to: *mut f32,
) {
    let bytes = &bytes[..COUNT];
    for i in (0..COUNT).step_by(V::N) {
        // SAFETY: the caller's promises; COUNT bytes are whole vectors.
        unsafe {
            let both = V::load_bytes(bytes.as_ptr().add(i));
            low.write(code::<V>(both, 0, low_fifth, i), to.add(i));
            high.write(code::<V>(both, 4, high_fifth, i), to.add(COUNT + i));
        }
    }
}

/// Writes the numbers of the codes of 32 nibbles in a table.
///
/// # Safety
/// The machine has the instructions of `V`; `to` is valid for 32 writes.
#[inline(always)]
unsafe fn from_table<V: Lanes>(bytes: &[u8], table: &[f32; 16], scale: f32, to: *mut f32) {
    let bytes = &bytes[..16];
    for i in (0..16).step_by(V::N) {
        // SAFETY: the caller's promises.
        unsafe {
            let (scale, both) = (V::splat(scale), V::load_bytes(bytes.as_ptr().add(i)));
            V::looked_up(table, V::field(both, 0, 4)).mul(scale).store(to.add(i));
            V::looked_up(table, V::field(both, 4, 4)).mul(scale).store(to.add(16 + i));
        }
    }
}

/// 32 codes of four bits, with a fifth one each if there are bits of them.
///
/// # Safety
/// The machine has the instructions of `V`; `to` is valid for 32 writes.
#[inline(always)]
unsafe fn simple<V: Lanes>(bytes: &[u8], fifth: Option<u32>, [scale, offset]: [f32; 2], to: *mut f32) {
    let fifth = match fifth {
        None => [Fifth::None; 2],
        Some(bits) => [Fifth::Bits(bits), Fifth::Bits(bits >> 16)],
    };
    // SAFETY: the caller's promises.
    unsafe { nibbles::<V, 16>(bytes, [Affine::<V>::new(scale, offset); 2], fifth, to) }
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
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
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
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { simple::<V>(&block[4..], None, [half::<V>(block, 0), half::<V>(block, 2)], to) }
    }
}

struct Q5_0;
impl Block for Q5_0 {
    const BYTES: usize = 22;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
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
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
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
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
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
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        let both = [f32_of(block), f32_of(&block[4..])];
        for (run, codes) in block[8..].chunks_exact(16).enumerate() {
            // SAFETY: the caller's promises; four runs have 32 numbers each.
            unsafe { simple::<V>(codes, None, both, to.add(32 * run)) }
        }
    }
}

/// 32 codes of eight bits with a sign.
///
/// # Safety
/// The machine has the instructions of `V`; `to` is valid for 32 writes.
#[inline(always)]
unsafe fn bytes<V: Lanes>(codes: &[u8], scale: f32, to: *mut f32) {
    let codes = &codes[..32];
    // SAFETY: the caller's promises; 32 codes are whole vectors.
    unsafe {
        let scale = V::splat(scale);
        for i in (0..32).step_by(V::N) {
            V::load_i8(codes.as_ptr().add(i).cast()).mul(scale).store(to.add(i));
        }
    }
}

/// The f32 with which a block begins.
#[inline(always)]
pub(super) fn f32_of(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

struct Q8_0;
impl Block for Q8_0 {
    const BYTES: usize = 34;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
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
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        for (run, codes) in block[4..].chunks_exact(32).enumerate() {
            // SAFETY: the caller's promises.
            unsafe { bytes::<V>(codes, f32_of(block), to.add(32 * run)) }
        }
    }
}

/// Codes in E4M3, a multiple of 32.
struct Fp8<const NUMBERS: usize>;
impl<const NUMBERS: usize> Block for Fp8<NUMBERS> {
    const BYTES: usize = 4 + NUMBERS;
    const NUMBERS: usize = NUMBERS;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        let codes = &block[4..4 + NUMBERS];
        // SAFETY: the caller's promises; a multiple of 32 numbers are whole vectors.
        unsafe {
            let scale = V::splat(f32_of(block) * 256.0);
            for i in (0..NUMBERS).step_by(V::N) {
                V::load_e4m3(codes.as_ptr().add(i)).mul(scale).store(to.add(i));
            }
        }
    }
}

/// Two bits of each of 64 bytes at each of four places, 128 numbers of 32 bytes, in runs of 16 with
/// a scale and offset each. Bit i of 32 bytes is the third of each of 32 codes, if there are any.
///
/// # Safety
/// The machine has the instructions of `V`; `to` is valid for 256 writes.
#[inline(always)]
unsafe fn crumbs<V: Lanes>(bytes: &[u8], third: Option<&[u8]>, runs: [[f32; 2]; 16], to: *mut f32) {
    let (bytes, third) = (&bytes[..64], third.map(|third| &third[..32]));
    for (run, [scale, offset]) in runs.into_iter().enumerate() {
        let (part, place, from) = (run / 8, run % 8 / 2, run % 2 * 16);
        for i in (0..16).step_by(V::N) {
            // SAFETY: the caller's promises; 16 numbers are whole vectors.
            unsafe {
                let four = V::load_bytes(bytes.as_ptr().add(32 * part + from + i));
                let mut codes = V::field(four, 2 * place as u32, 2);
                if let Some(third) = third {
                    let bits = V::load_bytes(third.as_ptr().add(from + i));
                    codes = V::joined(codes, V::field(bits, run as u32 / 2, 1), 2);
                }
                Affine::new(scale, offset).write(V::float(codes), to.add(16 * run + i));
            }
        }
    }
}

struct Q2K;
impl Block for Q2K {
    const BYTES: usize = 84;
    const NUMBERS: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        let mut runs = [[0.0; 2]; 16];
        // SAFETY: the caller's promises.
        unsafe {
            let (scale, least) = (half::<V>(block, 80), half::<V>(block, 82));
            for (run, &both) in runs.iter_mut().zip(&block[..16]) {
                *run = [scale * f32::from(both & 15), -least * f32::from(both >> 4)];
            }
            crumbs::<V>(&block[16..80], None, runs, to);
        }
    }
}

struct Q3K;
impl Block for Q3K {
    const BYTES: usize = 110;
    const NUMBERS: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        let (low, high) = (&block[96..104], &block[104..108]);
        let mut runs = [[0.0; 2]; 16];
        // SAFETY: the caller's promises.
        unsafe {
            let scale = half::<V>(block, 108);
            for (run, both) in runs.iter_mut().enumerate() {
                let low = low[run % 8] >> (4 * (run / 8)) & 15;
                let six = low | (high[run % 4] >> (2 * (run / 4)) & 3) << 4;
                let scale = scale * (f32::from(six) - 32.0);
                *both = [scale, -4.0 * scale];
            }
            crumbs::<V>(&block[32..96], Some(&block[..32]), runs, to);
        }
    }
}

/// Scale and offset of the eight runs of a block: of each, six bits in twelve bytes.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn of_runs<V: Lanes>(block: &[u8]) -> [[f32; 2]; 8] {
    // SAFETY: the caller promises the instructions.
    let (scale, least) = unsafe { (half::<V>(block, 0), half::<V>(block, 2)) };
    let (packed, mut runs) = (&block[4..16], [[0.0; 2]; 8]);
    for run in 0..4 {
        let (first, second, both) = (packed[run], packed[run + 4], packed[run + 8]);
        runs[run] = [scale * f32::from(first & 63), -least * f32::from(second & 63)];
        let (factor, offset) = (both & 15 | first >> 6 << 4, both >> 4 | second >> 6 << 4);
        runs[run + 4] = [scale * f32::from(factor), -least * f32::from(offset)];
    }
    runs
}

/// Eight runs of 32 codes of four bits, two runs in 32 bytes; `fifth` are the bytes whose bits are
/// the fifth ones of each run.
///
/// # Safety
/// The machine has the instructions of `V`; `to` is valid for 256 writes.
#[inline(always)]
unsafe fn of_eight_runs<V: Lanes>(bytes: &[u8], fifth: Option<&[u8]>, runs: [[f32; 2]; 8], to: *mut f32) {
    for (pair, bytes) in bytes.chunks_exact(32).enumerate() {
        let (first, second) = (2 * pair, 2 * pair + 1);
        let fifth = match fifth {
            None => [Fifth::None; 2],
            Some(bytes) => [Fifth::Bytes(&bytes[..32], first as u32), Fifth::Bytes(&bytes[..32], second as u32)],
        };
        // SAFETY: the caller's promises.
        unsafe {
            let of_first = Affine::<V>::new(runs[first][0], runs[first][1]);
            let of_second = Affine::<V>::new(runs[second][0], runs[second][1]);
            nibbles::<V, 32>(bytes, [of_first, of_second], fifth, to.add(64 * pair));
        }
    }
}

struct Q4K;
impl Block for Q4K {
    const BYTES: usize = 144;
    const NUMBERS: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { of_eight_runs::<V>(&block[16..144], None, of_runs::<V>(block), to) }
    }
}

struct Q5K;
impl Block for Q5K {
    const BYTES: usize = 176;
    const NUMBERS: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { of_eight_runs::<V>(&block[48..176], Some(&block[16..48]), of_runs::<V>(block), to) }
    }
}

struct Q6K;
impl Block for Q6K {
    const BYTES: usize = 210;
    const NUMBERS: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        let (low, high, factors) = (&block[..128], &block[128..192], &block[192..208]);
        // SAFETY: the caller promises the instructions.
        let scale = unsafe { half::<V>(block, 208) };
        for (run, &factor) in factors.iter().enumerate() {
            let (part, place, from) = (run / 8, run % 8 / 2, run % 2 * 16);
            let scale = scale * f32::from(factor.cast_signed());
            for i in (0..16).step_by(V::N) {
                // SAFETY: the caller's promises; 16 numbers are whole vectors.
                unsafe {
                    let four = V::load_bytes(low.as_ptr().add(64 * part + 32 * (place % 2) + from + i));
                    let two = V::load_bytes(high.as_ptr().add(32 * part + from + i));
                    let two = V::field(two, 2 * place as u32, 2);
                    let codes = V::joined(V::field(four, 4 * (place as u32 / 2), 4), two, 4);
                    Affine::new(scale, -32.0 * scale).write(V::float(codes), to.add(16 * run + i));
                }
            }
        }
    }
}

/// The numbers of codes of four bits that are not evenly apart.
pub(super) const UNEVEN: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

struct Iq4Nl;
impl Block for Iq4Nl {
    const BYTES: usize = 18;
    const NUMBERS: usize = 32;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { from_table::<V>(&block[2..], &UNEVEN, half::<V>(block, 0), to) }
    }
}

/// The scales of the eight runs of a block of [`Packing::Iq4Xs`].
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn scales_of_uneven<V: Lanes>(block: &[u8]) -> [f32; 8] {
    let (high, low, mut scales) = (u16::from_le_bytes([block[2], block[3]]), &block[4..8], [0.0; 8]);
    // SAFETY: the caller promises the instructions.
    let scale = unsafe { half::<V>(block, 0) };
    for (run, of_run) in scales.iter_mut().enumerate() {
        let six = low[run / 2] >> (4 * (run % 2)) & 15 | ((high >> (2 * run) & 3) << 4) as u8;
        *of_run = scale * (f32::from(six) - 32.0);
    }
    scales
}

struct Iq4Xs;
impl Block for Iq4Xs {
    const BYTES: usize = 136;
    const NUMBERS: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe {
            for (run, scale) in scales_of_uneven::<V>(block).into_iter().enumerate() {
                from_table::<V>(&block[8 + 16 * run..], &UNEVEN, scale, to.add(32 * run));
            }
        }
    }
}

/// The numbers of E2M1.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

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
    unsafe fn unpack<V: Lanes>(block: &[u8], to: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { from_table::<V>(&block[1..], &E2M1, power(block[0]), to) }
    }
}
