//! Packed matrices: unpacked whole, or piece by piece within a product. Few rows are multiplied
//! with the blocks as they are.

use candle_core::{CudaDevice, DType, Tensor};
use cudarc::cublas::sys;

use super::blas::{Matrices, with_handle};
use super::call::{Call, Input, Output, blocks, suffix};
use super::memory::upload_addresses;
use crate::error::Result;
use crate::{Packed, Packing};

/// Threads of a block.
const THREADS: u32 = 256;

/// Numbers that a thread unpacks.
const NUMBERS: usize = 8;

/// Rows that one launch reads each block for, where there are several: the name of the kernel has
/// it.
const ROWS_AT_ONCE: usize = 4;

/// The numbers of some matrices `[outputs, inputs]`, one below the other. `None` where they are not
/// on a GPU, not of one packing and shape, or for types without a kernel.
pub fn unpack(matrices: &[&Packed], dtype: DType) -> Result<Option<Tensor>> {
    let Some(first) = matrices.first() else { return Ok(None) };
    let alike = |other: &&Packed| other.packing() == first.packing() && other.dims() == first.dims();
    let held: Option<Vec<_>> = matrices.iter().map(|matrix| PackedBlocks::new(matrix, dtype)).collect();
    let Some(held) = held.filter(|_| matrices.iter().all(alike)) else { return Ok(None) };
    let [outputs, inputs] = first.dims();
    let device = held[0].blocks.device().clone();
    let stream = device.cuda_stream();
    let mut out = Output::new(&device, dtype, (matrices.len() * outputs, inputs))?;
    if outputs * inputs > 0 {
        let addresses: Vec<_> = held.iter().map(|of| of.blocks.address(&stream)).collect();
        let (to, _to) = out.address(&stream);
        if let [(at, _)] = &addresses[..] {
            // SAFETY: the matrix has these numbers, and the answer has room for them.
            unsafe { held[0].unpack(&device, to, (*at, 0, 1), outputs * inputs) }?;
        } else {
            let list = upload_addresses(addresses.iter().map(|(at, _)| *at), &device)?;
            let Some(list) = Input::new(&list) else { return Ok(None) };
            let (many, _many) = list.address(&stream);
            // SAFETY: each matrix has these numbers, and the answer has room for those of all.
            unsafe { held[0].unpack(&device, to, (0, many, matrices.len()), outputs * inputs) }?;
        }
    }
    Ok(Some(out.tensor()))
}

/// The blocks of a matrix on a GPU, held while kernels that read them are launched.
pub(super) struct PackedBlocks<'t> {
    blocks: Input<'t>,
    packing: Packing,
    row_bytes: usize,
    /// The type of the numbers, and the end of the kernels' names for it.
    dtype: DType,
    suffix: &'static str,
}

impl<'t> PackedBlocks<'t> {
    /// To be unpacked to numbers of a type. `None` where they are not on a GPU, or for types
    /// without a kernel.
    pub(super) fn new(packed: &'t Packed, dtype: DType) -> Option<Self> {
        let (blocks, suffix) = (Input::new(packed.on_gpu()?)?, suffix(dtype)?);
        Some(Self { blocks, packing: packed.packing(), row_bytes: packed.row_bytes(), dtype, suffix })
    }

    /// Unpacks `numbers` numbers of blocks at an address to `to`, or of blocks at each of the
    /// addresses in a list, which is at the second one.
    ///
    /// # Safety
    /// The blocks must be there, and room for all their numbers at a multiple of 16 bytes.
    unsafe fn unpack(
        &self,
        device: &CudaDevice,
        to: u64,
        (one, many, matrices): (u64, u64, usize),
        numbers: usize,
    ) -> Result<()> {
        let stream = device.cuda_stream();
        let mut call = Call::new(device, &stream, &format!("unpack_{}", self.suffix))?;
        call.word(to).word(one).word(many).count(numbers / NUMBERS).count(self.packing as usize);
        let (x, _, z) = blocks(numbers / NUMBERS, THREADS)?;
        // SAFETY: the arguments of unpack; a thread writes eight of a matrix' numbers and reads
        // their block.
        unsafe { call.launch((x, matrices as u32, z), THREADS, 0) }
    }

    /// `out = beta · out + x · weightᵀ` of these rows, inputs and outputs; `with` gives the other
    /// matrices to a weight, by its address and stride, whose numbers are of `x`'s type. Beta is 0
    /// or 1.
    ///
    /// # Safety
    /// All matrices must have these sizes, and be held.
    pub(super) unsafe fn multiply(
        &self,
        device: &CudaDevice,
        with: &dyn Fn((u64, usize)) -> Matrices,
        beta: f32,
        (rows, inputs, outputs): (usize, usize, usize),
    ) -> Result<()> {
        let stream = device.cuda_stream();
        let (at, _blocks) = self.blocks.address(&stream);
        let whole = with((at, self.row_bytes));
        if rows <= Packed::FEW_ROWS && self.reads_eight(whole.x) {
            // SAFETY: the caller's promises.
            return unsafe { self.dots(device, &whole, beta, (rows, inputs, outputs)) };
        }
        let piece = Packed::unpacked_rows([outputs, inputs]);
        let mut scratch = Output::new(device, self.dtype, (piece, inputs))?;
        let (scratch_at, _scratch) = scratch.address(&stream);
        let out_bytes = if whole.types.1 == sys::cudaDataType::CUDA_R_32F { 4 } else { 2 };
        for first in (0..outputs).step_by(piece) {
            let count = piece.min(outputs - first);
            let mut matrices = with((scratch_at, inputs));
            matrices.out.0 += (first * out_bytes) as u64;
            // SAFETY: the caller's promises; the scratch has room for a piece, and the device does
            // one after the other.
            unsafe {
                self.unpack(device, scratch_at, (at + (first * self.row_bytes) as u64, 0, 1), count * inputs)?;
                with_handle(device, |handle| matrices.multiply(handle, beta, (rows, inputs, count)))??;
            }
        }
        Ok(())
    }

    /// Whether kernels can read rows of `x`, by address and stride, eight numbers at once: in 16
    /// bits.
    fn reads_eight(&self, (at, stride): (u64, usize)) -> bool {
        self.dtype != DType::F32 && (at | (stride * self.dtype.size_in_bytes()) as u64).is_multiple_of(16)
    }

    /// The product of few rows, where the weight's address is that of its blocks.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    unsafe fn dots(
        &self,
        device: &CudaDevice,
        of: &Matrices,
        beta: f32,
        (rows, inputs, outputs): (usize, usize, usize),
    ) -> Result<()> {
        let at_once = if rows == 1 { 1 } else { ROWS_AT_ONCE };
        let stream = device.cuda_stream();
        let mut call = Call::new(device, &stream, &format!("packed_dots_{at_once}_{}", self.suffix))?;
        let is_wide = of.types.1 == sys::cudaDataType::CUDA_R_32F;
        let counts = [rows, inputs, outputs, of.x.1, of.out.1, usize::from(is_wide), usize::from(beta != 0.0)];
        let words = |pair: &[usize]| pair[0] as u64 | (pair[1] as u64) << 32;
        let all = [&counts[..], &[self.packing as usize]].concat();
        call.word(of.out.0).word(of.x.0).word(of.weight.0).block(all.chunks(2).map(words).collect());
        let (x, _, z) = blocks(outputs * 32, THREADS)?;
        // SAFETY: the arguments of packed_dots; a warp reads a row of the blocks and `at_once` rows
        // of x, and writes as many numbers of the answer.
        unsafe { call.launch((x, rows.div_ceil(at_once) as u32, z), THREADS, 0) }
    }
}
