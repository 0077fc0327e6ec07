//! Keys and values in 8 bits: each head of a row is its numbers in E4M3 and a byte of scale.
//!
//! The scale is a power of two, so numbers that come from 8 bits are exact in f32 and in bf16, and
//! packing them again changes none. A row is packed by itself: what is stored, sent or cut row by
//! row stays what it was.

use candle_core::{DType, Tensor};

use crate::error::Result;

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
