//! Numbers to and from 8 bits, on the device that holds them.

use candle_core::{DType, Tensor};

use crate::eight_bits::{SCALE_BYTES, is_in_eight_bits, numbers_of_head};
use crate::error::{Error, Result};
use crate::{cpu, cuda};

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
