//! Keys and values in 8 bits on a CPU: rows of heads, each numbers in E4M3 and a byte of scale.

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use rayon::prelude::*;

use crate::eight_bits::SCALE_BYTES;
use crate::error::{Error, Result};

/// Rows that a thread takes at a time.
const ROWS_AT_ONCE: usize = 64;
/// The scale of a head that holds an infinity or no number: as the bits of an exponent, infinity.
const NOT_FINITE: u8 = 255;
/// The bits of 1.75 · 2⁸ = 448 below the exponent: the largest number of E4M3.
const LARGEST: u32 = 0x0060_0000;

/// The byte of scale of a head whose largest magnitude is `largest`: the bits of an f32's exponent.
fn scale_of(largest: f32) -> u8 {
    let bits = largest.to_bits();
    let (exponent, rest) = (bits >> 23, bits & 0x007f_ffff);
    if exponent == 0xff {
        return NOT_FINITE;
    }
    // Smaller heads than 2⁻¹¹⁸ are 0.
    exponent.saturating_sub(if rest > LARGEST { 7 } else { 8 }) as u8
}

/// A number within ±448 in E4M3, to the nearest, halves to even.
#[inline(always)]
fn e4m3(x: f32) -> u8 {
    let bits = x.to_bits();
    let (sign, magnitude) = ((bits >> 24) as u8 & 0x80, bits & 0x7fff_ffff);
    // Below 2⁻⁶ numbers are whole multiples of 2⁻⁹: adding 2²³ rounds to them.
    let small = (f32::from_bits(magnitude) * 512.0 + 8_388_608.0).to_bits() as u8;
    let rounded = magnitude + 0x0007_ffff + (magnitude >> 20 & 1);
    let normal = (rounded >> 20).wrapping_sub((127 - 7) << 3) as u8;
    sign | if magnitude < 0x3c80_0000 { small } else { normal }
}

/// Packs a head's numbers into `to`, one byte longer.
#[inline(always)]
fn pack(numbers: &[f32], to: &mut [u8]) {
    let largest = numbers.iter().fold(0u32, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
    let scale = scale_of(f32::from_bits(largest));
    let (codes, last) = to.split_at_mut(numbers.len());
    last[0] = scale;
    match scale {
        // The number 1 times an infinite scale is infinite.
        NOT_FINITE => codes.fill(e4m3(1.0)),
        0 => codes.fill(0),
        _ => {
            // The reciprocal of the scale, a power of two, in two factors within the range of f32.
            let (a, b) = ((254 - u32::from(scale)) / 2, (254 - u32::from(scale)).div_ceil(2));
            let [a, b] = [a + 64 - 1, b + 64].map(|exponent| f32::from_bits(exponent << 23));
            for (code, x) in codes.iter_mut().zip(numbers) {
                *code = e4m3(x * a * b);
            }
        }
    }
}

/// Unpacks a head, one byte longer than its numbers, to f32.
#[inline(always)]
pub(super) fn unpack(head: &[u8], to: &mut [f32]) {
    let (codes, last) = head.split_at(to.len());
    let scale = f32::from_bits(u32::from(last[0]) << 23);
    for (to, &code) in to.iter_mut().zip(codes) {
        let (sign, magnitude) = (u32::from(code & 0x80) << 24, u32::from(code & 0x7f));
        // Below 2⁻⁶ a number is a multiple of 2⁻⁹; others have another bias of the exponent.
        let small = (magnitude as f32 / 512.0).to_bits();
        let normal = (magnitude << 20) + ((127 - 7) << 23);
        *to = f32::from_bits(sign | if magnitude < 8 { small } else { normal }) * scale;
    }
}

/// See [`crate::to_eight_bits`], on the host.
pub(crate) fn to_eight_bits(x: &Tensor) -> Result<Tensor> {
    let (rows, heads, head_dim) = x.dims3()?;
    let wide = x.to_dtype(DType::F32)?.contiguous()?;
    let (storage, layout) = wide.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(numbers)) = &*storage else { return Err(elsewhere(x)) };
    let numbers = &numbers[layout.start_offset()..][..wide.elem_count()];
    let mut packed = vec![0; rows * heads * (head_dim + SCALE_BYTES)];
    let rows_of = numbers.par_chunks_exact(heads * head_dim);
    let to = packed.par_chunks_exact_mut(heads * (head_dim + SCALE_BYTES));
    to.zip(rows_of).with_min_len(ROWS_AT_ONCE).for_each(|(to, row)| {
        let heads = to.chunks_exact_mut(head_dim + SCALE_BYTES).zip(row.chunks_exact(head_dim));
        heads.for_each(|(to, head)| pack(head, to));
    });
    Ok(Tensor::from_vec(packed, (rows, heads, head_dim + SCALE_BYTES), &Device::Cpu)?)
}

/// See [`crate::from_eight_bits`], on the host and to f32.
pub(crate) fn from_eight_bits(x: &Tensor) -> Result<Tensor> {
    let (rows, heads, width) = x.dims3()?;
    let packed = x.contiguous()?;
    let (storage, layout) = packed.storage_and_layout();
    let Storage::Cpu(CpuStorage::U8(bytes)) = &*storage else { return Err(elsewhere(x)) };
    let bytes = &bytes[layout.start_offset()..][..packed.elem_count()];
    let head_dim = width - SCALE_BYTES;
    let mut numbers = vec![0.0; rows * heads * head_dim];
    let rows_of = bytes.par_chunks_exact(heads * width);
    numbers.par_chunks_exact_mut(heads * head_dim).zip(rows_of).with_min_len(ROWS_AT_ONCE).for_each(|(to, row)| {
        to.chunks_exact_mut(head_dim).zip(row.chunks_exact(width)).for_each(|(to, head)| unpack(head, to));
    });
    Ok(Tensor::from_vec(numbers, (rows, heads, head_dim), &Device::Cpu)?)
}

fn elsewhere(x: &Tensor) -> Error {
    let (expected, found) = ("on the CPU".into(), format!("{:?}", x.device().location()));
    Error::Shape { op: "8 bits", what: "numbers", expected, found }
}
