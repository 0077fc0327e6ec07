//! Writing rows into memory that is there already, or adding them to what is there, so that a
//! growing tensor does not have to be copied.

use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaError;
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp2, Layout, Tensor};

use super::call::{Call, Input, address, address_mut, ours};
use super::memory::upload;
use super::rows::grid;
use crate::error::Result;

/// Copies the second tensor over the first one's rows from `first` on. Both are contiguous and of
/// one type.
struct WriteRows {
    first: usize,
}

impl InplaceOp2 for WriteRows {
    fn name(&self) -> &'static str {
        "write_rows"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        candle_core::bail!("rows on a CPU are written otherwise")
    }

    fn cuda_fwd(
        &self,
        into: &mut CudaStorage,
        into_layout: &Layout,
        rows: &CudaStorage,
        rows_layout: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        let size = rows.dtype().size_in_bytes();
        let row: usize = into_layout.dims()[1..].iter().product();
        let to_byte = (into_layout.start_offset() + self.first * row) * size;
        let (from_byte, bytes) = (rows_layout.start_offset() * size, rows_layout.shape().elem_count() * size);
        let stream = rows.device().cuda_stream();
        let ((from, _from), (to, _to)) = (address(&rows.slice, &stream), address_mut(&mut into.slice, &stream));
        let (from, to) = (from + from_byte as u64, to + to_byte as u64);
        // SAFETY: `write_rows` has checked that the rows lie within both tensors, which are
        // contiguous; both are held until the copy is given to the stream, and later reads come
        // after it there.
        let copied = unsafe { cudarc::driver::result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) };
        copied.map_err(|error| CudaError::from(error).into())
    }
}

/// See [`crate::write_rows`]; shapes and types are known to fit, and both tensors are contiguous.
/// Whether it was done.
pub fn write_rows(into: &Tensor, rows: &Tensor, first: usize) -> Result<bool> {
    if !ours(&[into, rows]) {
        return Ok(false);
    }
    if rows.elem_count() > 0 {
        into.inplace_op2(rows, &WriteRows { first })?;
    }
    Ok(true)
}

/// Adds rows of f32, times their weights, to rows of the first tensor.
struct AddRows {
    /// The places, then the weights' bits, on the device.
    places: Tensor,
    count: usize,
    width: usize,
}

impl InplaceOp2 for AddRows {
    fn name(&self) -> &'static str {
        "add_rows"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        candle_core::bail!("rows on a CPU are added otherwise")
    }

    fn cuda_fwd(
        &self,
        into: &mut CudaStorage,
        into_layout: &Layout,
        rows: &CudaStorage,
        rows_layout: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        let (device, stream) = (rows.device(), rows.device().cuda_stream());
        let Some(places) = Input::new(&self.places) else { candle_core::bail!("places of rows on another device") };
        let ((from, _from), (to, _to)) = (address(&rows.slice, &stream), address_mut(&mut into.slice, &stream));
        let byte = |layout: &Layout| (layout.start_offset() * size_of::<f32>()) as u64;
        let mut call = Call::new(device, &stream, "add_rows").map_err(candle_core::Error::wrap)?;
        call.word(to + byte(into_layout)).word(from + byte(rows_layout)).input(&places);
        call.count(self.count).count(self.width);
        let (grid, threads) = grid(self.count, self.width);
        // SAFETY: the arguments of add_rows, which has checked that every place is a row of the
        // tensor, that the places differ, and that both tensors are contiguous.
        unsafe { call.launch(grid, threads, 0) }.map_err(candle_core::Error::wrap)
    }
}

/// See [`crate::add_rows`]; shapes, types and places are known to fit. Whether it was done.
pub fn add_rows(into: &Tensor, rows: &Tensor, places: &[u32], weights: &[f32]) -> Result<bool> {
    if !ours(&[into, rows]) || rows.dtype() != DType::F32 {
        return Ok(false);
    }
    let list: Vec<u32> = places.iter().copied().chain(weights.iter().map(|weight| weight.to_bits())).collect();
    let op = AddRows { places: upload(&list, into.device())?, count: places.len(), width: rows.dim(1)? };
    into.inplace_op2(rows, &op)?;
    Ok(true)
}
