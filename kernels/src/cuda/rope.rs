//! Rotation of whole tensors to their positions.

use std::sync::Arc;

use candle_core::{CudaDevice, Tensor};

use super::call::{Call, Input, Output, blocks, ours, suffix};
use super::rope_tables::DeviceTables;
use super::rows::contiguous;
use crate::error::Result;
use crate::{Pairing, Positions, Rope};

const THREADS: u32 = 256;

/// The rope's tables on a device, copied there when they are first asked for and kept as long as
/// the rope.
///
/// No lock is held while they are copied: the host may wait for the device's queue, which may wait
/// for other ranks, and those for the same tables. Of two copies the first that is stored stays.
pub fn tables(rope: &Rope, device: &CudaDevice) -> Result<Arc<DeviceTables>> {
    if let Some(tables) = rope.on_devices().stored(device, None) {
        return Ok(tables);
    }
    let (cosine, sine) = rope.tables();
    let new = Arc::new(DeviceTables { cosine: device.clone_htod(cosine)?, sine: device.clone_htod(sine)? });
    Ok(rope.on_devices().stored(device, Some(&new)).unwrap_or(new))
}

/// `x` `[rows, heads, head_dim]` rotated to its positions, which are within the tables; `None`
/// where it is not a float tensor on a GPU.
pub fn rotated(rope: &Rope, x: &Tensor, at: &Positions) -> Result<Option<Tensor>> {
    let Some(suffix) = suffix(x.dtype()).filter(|_| ours(&[x])) else { return Ok(None) };
    let (rows, heads, head_dim) = x.dims3()?;
    let (half, interleaved) = (rope.rotary_dims() / 2, rope.pairing() == Pairing::Interleaved);
    let (x, positions) = (contiguous(x)?, at.rope_list().on(x.device())?);
    let (Some(values), Some(positions)) = (Input::new(&x), Input::new(&positions)) else { return Ok(None) };
    let device = values.device().clone();
    let tables = tables(rope, &device)?;
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, x.dtype(), x.shape())?);
    // Eight at a time where everything that a thread touches begins at 16 bytes.
    let turning = if interleaved { half / 4 } else { half / 8 };
    let whole = half % if interleaved { 4 } else { 8 } == 0 && head_dim.is_multiple_of(8) && aligned(&values, &stream);
    let (name, units) = match whole {
        true => (format!("rope_{suffix}"), turning + (head_dim - 2 * half) / 8),
        false => (format!("rope_pairs_{suffix}"), head_dim - half),
    };
    let mut call = Call::new(&device, &stream, &name)?;
    call.output(&mut out).input(&values).input(&positions).slice(&tables.cosine).slice(&tables.sine);
    call.count(rows).count(heads).count(head_dim).count(half).word(u64::from(interleaved));
    // SAFETY: the arguments of rope and rope_pairs; they touch rows, heads and dims of the two
    // tensors and the tables' rows at the positions, which the caller has checked.
    unsafe { call.launch(blocks(rows * heads * units, THREADS)?, THREADS, 0) }?;
    Ok(Some(out.tensor()))
}

/// Whether a tensor begins at a multiple of 16 bytes. (Fresh memory and the tables do.)
fn aligned(input: &Input<'_>, stream: &cudarc::driver::CudaStream) -> bool {
    input.address(stream).0.is_multiple_of(16)
}
