//! Writing onto memory that is there already, so that nothing has to be copied: rows over those of
//! a growing tensor, and rows that several experts have computed, summed by their weights onto what
//! is there.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, DType, InplaceOp2, Layout, Tensor};

use super::call::{Call, Input, address, address_mut, blocks, ours, suffix};
use super::failure;
use crate::error::{Error, Result};

/// Threads of a block that adds pairs.
const THREADS: u32 = 256;

/// Work on the device that writes the first tensor and reads the second one. It gets the addresses
/// of their first elements, and gives itself to the device's stream.
struct Onto<W> {
    name: &'static str,
    work: W,
}

impl<W: Fn(&CudaDevice, u64, u64) -> Result<()>> InplaceOp2 for Onto<W> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        candle_core::bail!("{} on a CPU is other code", self.name)
    }

    fn cuda_fwd(
        &self,
        into: &mut CudaStorage,
        into_layout: &Layout,
        from: &CudaStorage,
        from_layout: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        let (device, stream) = (from.device(), from.device().cuda_stream());
        let byte = |layout: &Layout, dtype: DType| (layout.start_offset() * dtype.size_in_bytes()) as u64;
        let (to_byte, from_byte) = (byte(into_layout, into.dtype()), byte(from_layout, from.dtype()));
        let ((from, _from), (to, _to)) = (address(&from.slice, &stream), address_mut(&mut into.slice, &stream));
        (self.work)(device, to + to_byte, from + from_byte).map_err(|error| match error {
            Error::Candle(error) => error,
            other => candle_core::Error::wrap(other),
        })
    }
}

/// See [`crate::write_rows`]; shapes and types are known to fit, and both tensors are contiguous.
/// Whether it was done.
pub fn write_rows(into: &Tensor, rows: &Tensor, first: usize) -> Result<bool> {
    if !ours(&[into, rows]) {
        return Ok(false);
    }
    let (size, bytes) = (rows.dtype().size_in_bytes(), rows.elem_count() * rows.dtype().size_in_bytes());
    let before_bytes = first * into.dims()[1..].iter().product::<usize>() * size;
    let work = |device: &CudaDevice, to: u64, from: u64| {
        let (to, stream) = (to + before_bytes as u64, device.cuda_stream());
        // SAFETY: `crate::write_rows` has checked that the rows lie within both tensors, which are
        // contiguous; both are held until the copy is given to the stream, and later reads come
        // after it there.
        unsafe { cudarc::driver::result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }.map_err(failure::of)
    };
    if bytes > 0 {
        into.inplace_op2(rows, &Onto { name: "write_rows", work })?;
    }
    Ok(true)
}

/// Adds to row r of `into` `[rows, width]`, f32, its rows of `pairs` `[rows · each, width]` times
/// their weights, one after the other. `list` `[2 · rows · each]` has the numbers of each row's
/// pairs, then their weights' bits, for one row after the other. All are contiguous, and the list
/// is known to fit. Whether it was done.
pub fn add_pairs(into: &Tensor, pairs: &Tensor, list: &Tensor) -> Result<bool> {
    let ((rows, width), count, size) = (into.dims2()?, pairs.dim(0)?, pairs.dtype().size_in_bytes());
    let Some(suffix) = suffix(pairs.dtype()).filter(|_| ours(&[into, pairs, list]) && into.dtype() == DType::F32)
    else {
        return Ok(false);
    };
    let Some(list) = Input::new(list) else { return Ok(false) };
    let work = |device: &CudaDevice, to: u64, from: u64| {
        let stream = device.cuda_stream();
        let (list_at, _list) = list.address(&stream);
        let mut call = Call::new(device, &stream, &format!("add_pairs_{suffix}"))?;
        call.word(to).word(from).word(list_at).count(rows).count(count / rows).count(width);
        call.aligned(&[to as usize, from as usize, width * size_of::<f32>(), width * size]);
        // SAFETY: the arguments of add_pairs; the list was made of pairs that there are, as many
        // for each of the rows, and both tensors are contiguous and held.
        unsafe { call.launch(blocks(rows * width.div_ceil(8), THREADS)?, THREADS, 0) }
    };
    if rows > 0 && width > 0 {
        into.inplace_op2(pairs, &Onto { name: "add_pairs", work })?;
    }
    Ok(true)
}
