//! Keys and values in 8 bits: packing and unpacking, one launch each.

use candle_core::{DType, Tensor};

use super::call::{Call, Input, Output, blocks, ours, suffix};
use super::rows::contiguous;
use crate::eight_bits::SCALE_BYTES;
use crate::error::Result;

/// Threads of a block; packing has a warp of 32 a head.
const THREADS: u32 = 256;

/// See [`crate::to_eight_bits`], of a head at least.
pub fn to_eight_bits(x: &Tensor) -> Result<Option<Tensor>> {
    let Some(suffix) = suffix(x.dtype()).filter(|_| ours(&[x])) else { return Ok(None) };
    let ((rows, heads, head_dim), x) = (x.dims3()?, contiguous(x)?);
    let Some(numbers) = Input::new(&x) else { return Ok(None) };
    let device = numbers.device().clone();
    let shape = (rows, heads, head_dim + SCALE_BYTES);
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, DType::U8, shape)?);
    let mut call = Call::new(&device, &stream, &format!("to_eight_bits_{suffix}"))?;
    call.output(&mut out).input(&numbers).count(rows * heads).count(head_dim);
    // SAFETY: the arguments of to_eight_bits; a warp reads one of the heads and writes as many
    // bytes and one more.
    unsafe { call.launch(blocks(rows * heads * 32, THREADS)?, THREADS, 0) }?;
    Ok(Some(out.tensor()))
}

/// See [`crate::from_eight_bits`], of a head at least.
pub fn from_eight_bits(x: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
    let Some(suffix) = suffix(dtype).filter(|_| ours(&[x])) else { return Ok(None) };
    let ((rows, heads, width), x) = (x.dims3()?, contiguous(x)?);
    let Some(packed) = Input::new(&x) else { return Ok(None) };
    let (device, head_dim) = (packed.device().clone(), width - SCALE_BYTES);
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, dtype, (rows, heads, head_dim))?);
    let mut call = Call::new(&device, &stream, &format!("from_eight_bits_{suffix}"))?;
    call.output(&mut out).input(&packed).count(rows * heads).count(head_dim);
    // SAFETY: the arguments of from_eight_bits; a thread writes one of the numbers and reads its
    // byte and its head's scale.
    unsafe { call.launch(blocks(rows * heads * head_dim, THREADS)?, THREADS, 0) }?;
    Ok(Some(out.tensor()))
}
