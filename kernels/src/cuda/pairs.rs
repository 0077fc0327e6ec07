//! Rows that several experts have computed, summed by their weights in one launch.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp2, Layout, Tensor};

use super::call::{Call, Input, address, address_mut, blocks, ours, suffix};
use crate::error::Result;

/// Threads of a block.
const THREADS: u32 = 256;

/// Adds to each row of the first tensor its pairs of the second one.
struct AddPairs<'t> {
    /// Numbers of each row's pairs, then their weights' bits, on the device.
    list: &'t Tensor,
    /// Rows, pairs of each, and the width of a row.
    sizes: (usize, usize, usize),
    /// The end of the kernel's name, for the pairs' type.
    suffix: &'static str,
}

impl InplaceOp2 for AddPairs<'_> {
    fn name(&self) -> &'static str {
        "add_pairs"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        candle_core::bail!("pairs on a CPU are added otherwise")
    }

    fn cuda_fwd(
        &self,
        into: &mut CudaStorage,
        into_layout: &Layout,
        pairs: &CudaStorage,
        pairs_layout: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        let (device, stream, (rows, each, width)) = (pairs.device(), pairs.device().cuda_stream(), self.sizes);
        let Some(list) = Input::new(self.list) else { candle_core::bail!("a list of pairs on another device") };
        let (into_size, size) = (size_of::<f32>(), pairs.dtype().size_in_bytes());
        let ((from, _from), (to, _to)) = (address(&pairs.slice, &stream), address_mut(&mut into.slice, &stream));
        let (list_at, _list) = list.address(&stream);
        let to = to + (into_layout.start_offset() * into_size) as u64;
        let from = from + (pairs_layout.start_offset() * size) as u64;
        let name = format!("add_pairs_{}", self.suffix);
        let mut call = Call::new(device, &stream, &name).map_err(candle_core::Error::wrap)?;
        call.word(to).word(from).word(list_at).count(rows).count(each).count(width);
        call.aligned(&[to as usize, from as usize, width * into_size, width * size]);
        let grid = blocks(rows * width.div_ceil(8), THREADS).map_err(candle_core::Error::wrap)?;
        // SAFETY: the arguments of add_pairs; the list was made of pairs that there are, `each` for
        // each of the rows, and both tensors are contiguous.
        unsafe { call.launch(grid, THREADS, 0) }.map_err(candle_core::Error::wrap)
    }
}

/// Adds to row r of `into` `[rows, width]`, f32, its rows of `pairs` `[rows · each, width]` times
/// their weights, one after the other. `list` `[2 · rows · each]` has the numbers of each row's
/// pairs, then their weights' bits, for one row after the other. All are contiguous, and the list
/// is known to fit. Whether it was done.
pub fn add_pairs(into: &Tensor, pairs: &Tensor, list: &Tensor) -> Result<bool> {
    let ((rows, width), count) = (into.dims2()?, pairs.dim(0)?);
    let Some(suffix) = suffix(pairs.dtype()).filter(|_| ours(&[into, pairs, list]) && into.dtype() == DType::F32)
    else {
        return Ok(false);
    };
    if rows > 0 && width > 0 {
        into.inplace_op2(pairs, &AddPairs { list, sizes: (rows, count / rows, width), suffix })?;
    }
    Ok(true)
}
