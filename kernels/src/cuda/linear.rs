//! Products of matrices by cuBLAS, summed in f32.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, DType, InplaceOp1, Layout, Tensor};
use cudarc::cublas::{result, sys};

use super::call::{Input, Output, address_mut, ours};
use super::failure;
use super::layer::bias_rows;
use super::rows::{contiguous, row_stride};
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

/// `residual + x · weightᵀ + bias` in `dtype`: `x` `[rows, in]` and `weight` `[out, in]` of one
/// type, `residual` `[rows, out]` of `dtype`, `bias` `[out]` of any. `None` where cuBLAS does not
/// have it.
pub fn product(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    dtype: DType,
) -> Result<Option<Tensor>> {
    if !ours(&[x, weight]) || residual.is_some_and(|residual| residual.dtype() != dtype) {
        return Ok(None);
    }
    let (x, weight) = (with_rows(x)?, with_rows(weight)?);
    let Some(factors) = Factors::new(&x, &weight, dtype)? else { return Ok(None) };
    let (rows, _, outputs) = factors.sizes;
    let device = factors.x.values.device().clone();
    let stream = device.cuda_stream();
    // The terms that the product is added to are written into the answer first.
    let (mut out, beta) = match (residual, bias) {
        (residual, Some(bias)) => match bias_rows(residual, bias, rows, dtype)? {
            Some(out) => (out, 1f32),
            None => return Ok(None),
        },
        (Some(residual), None) => {
            let residual = contiguous(residual)?;
            let Some(from) = Input::new(&residual) else { return Ok(None) };
            let mut out = Output::new(&device, dtype, (rows, outputs))?;
            out.copy_from(&from, &stream)?;
            (out, 1f32)
        }
        (None, None) => (Output::new(&device, dtype, (rows, outputs))?, 0f32),
    };
    let (out_at, held) = out.address(&stream);
    factors.multiply(&device, beta, (out_at, outputs))?;
    drop(held);
    Ok(Some(out.tensor()))
}

/// Adds `x · weightᵀ` to the rows of `into`, in place. Returns whether it was done: not for types
/// or layouts that `product` does not take, or if the rows of `into` are not contiguous.
pub fn add_product(into: &Tensor, x: &Tensor, weight: &Tensor) -> Result<bool> {
    if !ours(&[into, x, weight]) || !into.is_contiguous() {
        return Ok(false);
    }
    let (x, weight) = (with_rows(x)?, with_rows(weight)?);
    let Some(factors) = Factors::new(&x, &weight, into.dtype())? else { return Ok(false) };
    into.inplace_op1(&factors)?;
    Ok(true)
}

/// A matrix of rows with one stride, in values.
struct Matrix<'t> {
    values: Input<'t>,
    stride: usize,
}

/// Two matrices to be multiplied, `x · weightᵀ`.
struct Factors<'t> {
    x: Matrix<'t>,
    weight: Matrix<'t>,
    /// Rows, inputs and outputs.
    sizes: (usize, usize, usize),
    /// Types of the input and of the output.
    types: (sys::cudaDataType, sys::cudaDataType),
}

impl InplaceOp1 for Factors<'_> {
    fn name(&self) -> &'static str {
        "add_product"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> std::result::Result<(), candle_core::Error> {
        candle_core::bail!("products on a CPU are added otherwise")
    }

    fn cuda_fwd(&self, into: &mut CudaStorage, layout: &Layout) -> std::result::Result<(), candle_core::Error> {
        let (device, size) = (into.device().clone(), into.dtype().size_in_bytes());
        let stream = device.cuda_stream();
        let (at, _held) = address_mut(&mut into.slice, &stream);
        let at = at + (layout.start_offset() * size) as u64;
        self.multiply(&device, 1.0, (at, self.sizes.2)).map_err(candle_core::Error::wrap)
    }
}

impl<'t> Factors<'t> {
    /// Factors of a product in `dtype`: `x` `[rows, inputs]` and `weight` `[outputs, inputs]` of
    /// one type, each with rows at one stride. `None` where cuBLAS does not have it.
    fn new(x: &'t Tensor, weight: &'t Tensor, dtype: DType) -> Result<Option<Self>> {
        let ((rows, inputs), outputs) = (x.dims2()?, weight.dim(0)?);
        let fits = x.dtype() == weight.dtype() && (dtype == x.dtype() || dtype == DType::F32);
        let types = data_type(x.dtype()).zip(data_type(dtype)).filter(|_| fits);
        let matrix = |x: &'t Tensor| Some(Matrix { values: Input::new(x)?, stride: row_stride(x)? });
        let (Some(types), Some(x), Some(weight)) = (types, matrix(x), matrix(weight)) else { return Ok(None) };
        Ok(Some(Self { x, weight, sizes: (rows, inputs, outputs), types }))
    }

    /// `out = beta · out + x · weightᵀ`, where `out` begins at `out_at` and its rows are
    /// `out_stride` values apart. The caller holds it.
    fn multiply(&self, device: &CudaDevice, beta: f32, out: (u64, usize)) -> Result<()> {
        let stream = device.cuda_stream();
        let ((x_at, _x), (weight_at, _weight)) = (self.x.values.address(&stream), self.weight.values.address(&stream));
        let matrices =
            Matrices { x: (x_at, self.x.stride), weight: (weight_at, self.weight.stride), out, types: self.types };
        // SAFETY: the three matrices have these sizes at these strides, and are held.
        with_handle(device, |handle| unsafe { matrices.multiply(handle, beta, self.sizes) })?
    }
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

/// The tensor itself where its rows have one stride, no shorter than a row; else a contiguous copy.
fn with_rows(x: &Tensor) -> Result<Tensor> {
    let wide_enough = |stride: usize| x.dims().last().is_some_and(|&dim| stride >= dim);
    if row_stride(x).is_some_and(wide_enough) { Ok(x.clone()) } else { contiguous(x) }
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
