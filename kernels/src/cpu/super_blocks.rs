//! Blocks of 256 packed numbers, unpacked to f32. The layouts are those of ggml (`ggml-common.h`,
//! `ggml-quants.c`).

use super::block::{Affine, Block, Fifth, FourBits, Sink, UNEVEN, four_bits, from_table, half};
use super::lanes::Lanes;

/// Two bits of each of 64 bytes at each of four places, 128 numbers of 32 bytes, in runs of 16 with
/// a scale and offset each. Bit i of 32 bytes is the third of each of 32 codes, if there are any.
///
/// # Safety
/// The machine has the instructions of `V`; `to` takes 256 numbers.
#[inline(always)]
unsafe fn crumbs<V: Lanes>(bytes: &[u8], third: Option<&[u8]>, runs: [[f32; 2]; 16], to: &mut impl Sink<V>) {
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
                to.take(16 * run + i, Affine::new(scale, offset).of(V::float(codes)));
            }
        }
    }
}

pub(super) struct Q2K;
impl Block for Q2K {
    const BYTES: usize = 84;
    const NUMBERS: usize = 256;
    const RUN: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
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

pub(super) struct Q3K;
impl Block for Q3K {
    const BYTES: usize = 110;
    const NUMBERS: usize = 256;
    const RUN: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], _run: usize, to: &mut impl Sink<V>) {
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

/// Scale and offset of two neighbours of the eight runs of a block, of which this is the first: six
/// bits each in twelve bytes.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn of_two_runs<V: Lanes>(block: &[u8], first: usize) -> [[f32; 2]; 2] {
    // SAFETY: the caller promises the instructions.
    let (scale, least) = unsafe { (half::<V>(block, 0), half::<V>(block, 2)) };
    let (packed, mut runs) = (&block[4..16], [[0.0; 2]; 2]);
    for (run, of) in (first..).zip(&mut runs) {
        let (factor, offset) = if first < 4 {
            (packed[run] & 63, packed[run + 4] & 63)
        } else {
            let both = packed[run + 4];
            (both & 15 | packed[run - 4] >> 6 << 4, both >> 4 | packed[run] >> 6 << 4)
        };
        *of = [scale * f32::from(factor), -least * f32::from(offset)];
    }
    runs
}

/// A pair of the eight runs of 32 codes of four bits, which shares 32 bytes; of the bytes `fifth`
/// the bit with a run's number is the fifth one of its codes.
///
/// # Safety
/// The machine has the instructions of `V`; `to` takes 64 numbers.
#[inline(always)]
unsafe fn pair_of_runs<V: Lanes>(
    bytes: &[u8],
    fifth: Option<&[u8]>,
    (pair, scales): (usize, [[f32; 2]; 2]),
    to: &mut impl Sink<V>,
) {
    let bytes = &bytes[32 * pair..][..32];
    for (half, [scale, offset]) in scales.into_iter().enumerate() {
        let fifth = fifth.map_or(Fifth::None, |bytes| Fifth::Bytes(&bytes[..32], (2 * pair + half) as u32));
        // SAFETY: the caller's promises.
        unsafe {
            let kind = FourBits { affine: Affine::<V>::new(scale, offset), at: 4 * half as u32, fifth };
            four_bits(bytes, kind, to, 32 * half);
        }
    }
}

pub(super) struct Q4K;
impl Block for Q4K {
    const BYTES: usize = 144;
    const NUMBERS: usize = 256;
    const RUN: usize = 64;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], pair: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe { pair_of_runs::<V>(&block[16..144], None, (pair, of_two_runs::<V>(block, 2 * pair)), to) }
    }
}

pub(super) struct Q5K;
impl Block for Q5K {
    const BYTES: usize = 176;
    const NUMBERS: usize = 256;
    const RUN: usize = 64;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], pair: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe {
            pair_of_runs::<V>(&block[48..176], Some(&block[16..48]), (pair, of_two_runs::<V>(block, 2 * pair)), to)
        }
    }
}

pub(super) struct Q6K;
impl Block for Q6K {
    const BYTES: usize = 210;
    const NUMBERS: usize = 256;

    /// Four bits of a code share a byte with those of a second run, two more with three others.
    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], run: usize, to: &mut impl Sink<V>) {
        let (part, place) = (run / 4, run as u32 % 4);
        let low = &block[64 * part + 32 * (run % 2)..][..32];
        let high = &block[128 + 32 * part..][..32];
        let factors = [block[192 + 2 * run], block[193 + 2 * run]];
        // SAFETY: the caller promises the instructions.
        let scale = unsafe { half::<V>(block, 208) };
        for (half, factor) in factors.into_iter().enumerate() {
            let scale = scale * f32::from(factor.cast_signed());
            for i in (16 * half..16 * (half + 1)).step_by(V::N) {
                // SAFETY: the caller's promises; 16 numbers are whole vectors.
                unsafe {
                    let four = V::field(V::load_bytes(low.as_ptr().add(i)), 4 * (place / 2), 4);
                    let two = V::field(V::load_bytes(high.as_ptr().add(i)), 2 * place, 2);
                    to.take(i, Affine::new(scale, -32.0 * scale).of(V::float(V::joined(four, two, 4))));
                }
            }
        }
    }
}

/// The scale of one of the eight runs of a block of [`Iq4Xs`].
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn scale_of_uneven<V: Lanes>(block: &[u8], run: usize) -> f32 {
    let (high, low) = (u16::from_le_bytes([block[2], block[3]]), &block[4..8]);
    let six = low[run / 2] >> (4 * (run % 2)) & 15 | ((high >> (2 * run) & 3) << 4) as u8;
    // SAFETY: the caller promises the instructions.
    unsafe { half::<V>(block, 0) * (f32::from(six) - 32.0) }
}

pub(super) struct Iq4Xs;
impl Block for Iq4Xs {
    const BYTES: usize = 136;
    const NUMBERS: usize = 256;

    #[inline(always)]
    unsafe fn unpack<V: Lanes>(block: &[u8], run: usize, to: &mut impl Sink<V>) {
        // SAFETY: the caller's promises.
        unsafe { from_table::<V>(&block[8 + 16 * run..], &UNEVEN, scale_of_uneven::<V>(block, run), to) }
    }
}
