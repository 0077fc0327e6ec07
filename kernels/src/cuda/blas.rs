//! cuBLAS: its handles, one thread at a time, and a product of matrices by their addresses.

use std::sync::{Mutex, PoisonError};

use candle_core::{CudaDevice, DType};
use cudarc::cublas::{result, sys};

use super::failure;
use crate::error::Result;

/// More GPUs than a process has.
const GPUS: usize = 64;

/// A cuBLAS handle must not be used by two threads at once, and ranks as threads may share a
/// device. Each GPU has its own lock: cuBLAS loads kernels when it first needs them, and meanwhile
/// the driver may wait for running kernels on that GPU, such as NCCL's, which wait for other GPUs.
/// One lock for all would keep those from getting there.
static HANDLES: [Mutex<()>; GPUS] = [const { Mutex::new(()) }; GPUS];

/// The lock of GPU number `ordinal`'s handles.
fn handles(ordinal: usize) -> &'static Mutex<()> {
    &HANDLES[ordinal % GPUS]
}

/// Does something with a device's cuBLAS handle: its context is current, and no other thread of the
/// process uses a handle of that device.
///
/// # Errors
/// Returns an error if the driver refuses.
pub(super) fn with_handle<R>(device: &CudaDevice, work: impl FnOnce(sys::cublasHandle_t) -> R) -> Result<R> {
    let (stream, blas) = (device.cuda_stream(), device.cublas_handle());
    let _handles = handles(stream.context().ordinal()).lock().unwrap_or_else(PoisonError::into_inner);
    stream.context().bind_to_thread().map_err(failure::of)?;
    Ok(work(*blas.handle()))
}

/// Matrices of a product, each by its address and the values from one row to the next.
pub(super) struct Matrices {
    pub x: (u64, usize),
    pub weight: (u64, usize),
    pub out: (u64, usize),
    /// Types of the input and of the output.
    pub types: (sys::cudaDataType, sys::cudaDataType),
}

impl Matrices {
    /// `out = beta · out + x · weightᵀ` of these rows, inputs and outputs.
    ///
    /// # Safety
    /// The three matrices must have these sizes, and the handle come from `with_handle` of their
    /// device.
    ///
    /// # Errors
    /// Returns an error if cuBLAS refuses.
    pub(super) unsafe fn multiply(
        &self,
        handle: sys::cublasHandle_t,
        beta: f32,
        (rows, inputs, outputs): (usize, usize, usize),
    ) -> Result<()> {
        let Self { x: (x_at, x_stride), weight: (weight_at, weight_stride), out: (out_at, out_stride), .. } = *self;
        let ((input_type, output_type), alpha) = (self.types, 1f32);
        // Row-major [rows, outputs] is column-major [outputs, rows]: cuBLAS computes weight · xᵀ.
        // SAFETY: the caller promises the matrices; the handle is bound to their stream, whose
        // context is current; the factors are f32 on the host, as this kind of sum wants them.
        unsafe {
            result::gemm_ex(
                handle,
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                outputs as i32,
                rows as i32,
                inputs as i32,
                (&raw const alpha).cast(),
                weight_at as *const _,
                input_type,
                weight_stride as i32,
                x_at as *const _,
                input_type,
                x_stride as i32,
                (&raw const beta).cast(),
                out_at as *mut _,
                output_type,
                out_stride as i32,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(failure::of)
    }
}

/// The name that cuBLAS has for a type, if it takes it.
pub(super) fn data_type(dtype: DType) -> Option<sys::cudaDataType> {
    match dtype {
        DType::BF16 => Some(sys::cudaDataType::CUDA_R_16BF),
        DType::F16 => Some(sys::cudaDataType::CUDA_R_16F),
        DType::F32 => Some(sys::cudaDataType::CUDA_R_32F),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::handles;

    /// A rank whose product waits in the driver for another GPU's rank must not keep that one from
    /// its own products.
    #[test]
    fn a_gpus_products_do_not_wait_for_anothers() {
        let _first = handles(0).lock().expect("no thread panics with it");
        assert!(handles(0).try_lock().is_err(), "two threads at one handle");
        assert!((1..8).all(|other| handles(other).try_lock().is_ok()));
    }
}
