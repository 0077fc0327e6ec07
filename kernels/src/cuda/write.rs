//! Writing rows into memory that is there already, so that a growing tensor does not have to be
//! copied.

use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaError;
use candle_core::{CpuStorage, CudaStorage, InplaceOp2, Layout, Tensor};

use super::call::{address, address_mut, ours};
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
