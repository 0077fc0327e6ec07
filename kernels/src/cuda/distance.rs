//! The distance of rows, one launch.

use candle_core::{DType, Tensor};

use super::call::{Call, Input, Output, blocks, ours, suffix};
use super::rows::contiguous;
use crate::error::Result;

/// Threads of a block: warps of 32, each with a row.
const THREADS: u32 = 256;

/// See [`crate::distance()`]: of absolute differences, or else of their squares.
pub fn distance(a: &Tensor, b: &Tensor, absolute: bool) -> Result<Option<Tensor>> {
    let Some(suffix) = suffix(a.dtype()).filter(|_| ours(&[a, b]) && a.dtype() == b.dtype()) else { return Ok(None) };
    let rows = a.dim(0)?;
    if a.elem_count() == 0 {
        return Ok(None);
    }
    let (dim, a, b) = (a.elem_count() / rows, contiguous(a)?, contiguous(b)?);
    let (Some(left), Some(right)) = (Input::new(&a), Input::new(&b)) else { return Ok(None) };
    let device = left.device().clone();
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, DType::F32, rows)?);
    let mut call = Call::new(&device, &stream, &format!("distance_{suffix}"))?;
    call.output(&mut out).input(&left).input(&right).count(rows).count(dim);
    call.aligned(&[dim * a.dtype().size_in_bytes()]).count(usize::from(absolute));
    // SAFETY: the arguments of distance; a warp touches one of `rows` rows of `dim`, which both
    // tensors have.
    unsafe { call.launch(blocks(rows * 32, THREADS)?, THREADS, 0) }?;
    Ok(Some(out.tensor()))
}
