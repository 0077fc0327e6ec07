//! Keys and values in 8 bits: each head of a row is its numbers in E4M3 and a byte of scale.
//!
//! The scale is a power of two, so numbers that come from 8 bits are exact in f32 and in bf16, and
//! packing them again changes none. A row is packed by itself: what is stored, sent or cut row by
//! row stays what it was.

use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::{Keys, Query, cpu, cuda};

/// Bytes of a head's scale, after its numbers.
pub const SCALE_BYTES: usize = 1;

/// Whether keys or values are in 8 bits.
pub fn is_in_eight_bits(x: &Tensor) -> bool {
    x.dtype() == DType::U8
}

/// Numbers of a head of keys or values `[rows, kv_heads, width]`, in 8 bits or not.
///
/// # Errors
/// Returns an error if the tensor has another rank.
pub fn numbers_of_head(x: &Tensor) -> Result<usize> {
    let width = x.dims3()?.2;
    Ok(if is_in_eight_bits(x) { width.saturating_sub(SCALE_BYTES) } else { width })
}

/// Keys or values `[rows, kv_heads, head_dim]` in 8 bits: `[rows, kv_heads, head_dim + 1]` bytes.
/// The scale is the smallest power of two with which the head's largest number is within 448, the
/// range of E4M3 (Micikevicius et al. 2022, arXiv:2209.05433, section 3); numbers are rounded to
/// the nearest, halves to even. A head that is not finite gives numbers that are not finite.
///
/// # Errors
/// Returns an error if numbers are in no float of up to 32 bits, or if the device fails.
pub fn to_eight_bits(x: &Tensor) -> Result<Tensor> {
    let (rows, heads, head_dim) = x.dims3()?;
    if !matches!(x.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        let (expected, found) = ("f32, bf16 or f16".into(), format!("{:?}", x.dtype()));
        return Err(Error::Shape { op: "to_eight_bits", what: "numbers", expected, found });
    }
    if x.elem_count() == 0 {
        return cuda::nothing((rows, heads, head_dim + SCALE_BYTES), DType::U8, x.device());
    }
    match cuda::to_eight_bits(x)? {
        Some(packed) => Ok(packed),
        None => cpu::to_eight_bits(x),
    }
}

/// The numbers of keys or values in 8 bits, as `dtype`; others as they are.
///
/// # Errors
/// Returns an error if the dtype is no float of up to 32 bits, or if the device fails.
pub fn from_eight_bits(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if !is_in_eight_bits(x) {
        return Ok(x.clone());
    }
    let (rows, heads, _) = x.dims3()?;
    if x.elem_count() == 0 {
        return cuda::nothing((rows, heads, numbers_of_head(x)?), dtype, x.device());
    }
    match cuda::from_eight_bits(x, dtype)? {
        Some(numbers) => Ok(numbers),
        None => Ok(cpu::from_eight_bits(x)?.to_dtype(dtype)?),
    }
}

/// The keys of a call without 8 bits, if some are in 8 bits.
pub(crate) fn unpacked(query: &Query<'_>) -> Result<Option<Vec<Keys>>> {
    if !query.keys.iter().any(|block| is_in_eight_bits(&block.k) || is_in_eight_bits(&block.v)) {
        return Ok(None);
    }
    let of = |x: &Tensor| from_eight_bits(x, query.dtype);
    let block = |block: &Keys| Ok(Keys { k: of(&block.k)?, v: of(&block.v)?, at: block.at.clone() });
    query.keys.iter().map(block).collect::<Result<Vec<_>>>().map(Some)
}
