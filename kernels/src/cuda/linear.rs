//! Products of linear layers by cuBLAS, summed in f32.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, DType, InplaceOp1, Layout, Tensor};
use cudarc::cublas::sys;

use super::blas::{Matrices, data_type, with_handle};
use super::call::{Input, Output, address_mut, ours};
use super::layer::bias_rows;
use super::packed::PackedBlocks;
use super::rows::{contiguous, row_stride};
use crate::error::Result;
use crate::{Packed, WeightRef};

/// `residual + x · weightᵀ + bias` in `dtype`: `x` `[rows, in]`, `weight` `[out, in]` of its type
/// or packed, the terms `bias` `[out]` of any type and `residual` `[rows, out]` of `dtype`. `None`
/// where cuBLAS does not have it.
pub fn product(
    x: &Tensor,
    weight: WeightRef<'_>,
    (bias, residual): (Option<&Tensor>, Option<&Tensor>),
    dtype: DType,
) -> Result<Option<Tensor>> {
    if !ours(&[x]) || residual.is_some_and(|residual| residual.dtype() != dtype) {
        return Ok(None);
    }
    let (x, Some(weight)) = (with_rows(x)?, Second::new(weight)?) else { return Ok(None) };
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
pub fn add_product(into: &Tensor, x: &Tensor, weight: WeightRef<'_>) -> Result<bool> {
    if !ours(&[into, x]) || !into.is_contiguous() {
        return Ok(false);
    }
    let (x, Some(weight)) = (with_rows(x)?, Second::new(weight)?) else { return Ok(false) };
    let Some(factors) = Factors::new(&x, &weight, into.dtype())? else { return Ok(false) };
    into.inplace_op1(&factors)?;
    Ok(true)
}

/// The second matrix of a product.
enum Second<'w> {
    Plain(Tensor),
    Packed(&'w Packed),
}

impl<'w> Second<'w> {
    /// `None` where no GPU holds the weight, or a gradient of it is wanted.
    fn new(weight: WeightRef<'w>) -> Result<Option<Self>> {
        Ok(match weight {
            WeightRef::Plain(weight) if ours(&[weight]) => Some(Second::Plain(with_rows(weight)?)),
            WeightRef::Packed(packed) if packed.on_gpu().is_some() => Some(Second::Packed(packed)),
            _ => None,
        })
    }
}

/// A matrix of rows with one stride, in values.
struct Matrix<'t> {
    values: Input<'t>,
    stride: usize,
}

/// The second matrix as it is held for a product.
enum Held<'t> {
    Plain(Matrix<'t>),
    Packed(PackedBlocks<'t>),
}

/// Two matrices to be multiplied, `x · weightᵀ`.
struct Factors<'t> {
    x: Matrix<'t>,
    weight: Held<'t>,
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
    /// one type, each with rows at one stride, or the weight packed. `None` where cuBLAS does not
    /// have it.
    fn new(x: &'t Tensor, weight: &'t Second<'_>, dtype: DType) -> Result<Option<Self>> {
        let matrix = |x: &'t Tensor| Some(Matrix { values: Input::new(x)?, stride: row_stride(x)? });
        let (held, outputs, alike) = match weight {
            Second::Plain(weight) => (matrix(weight).map(Held::Plain), weight.dim(0)?, weight.dtype() == x.dtype()),
            Second::Packed(packed) => (PackedBlocks::new(packed, x.dtype()).map(Held::Packed), packed.dims()[0], true),
        };
        let fits = alike && (dtype == x.dtype() || dtype == DType::F32);
        let types = data_type(x.dtype()).zip(data_type(dtype)).filter(|_| fits);
        let ((rows, inputs), x) = (x.dims2()?, matrix(x));
        let (Some(types), Some(x), Some(weight)) = (types, x, held) else { return Ok(None) };
        Ok(Some(Self { x, weight, sizes: (rows, inputs, outputs), types }))
    }

    /// `out = beta · out + x · weightᵀ`, where `out` begins at `out_at` and its rows are
    /// `out_stride` values apart; `beta` is 0 or 1. The caller holds it.
    fn multiply(&self, device: &CudaDevice, beta: f32, out: (u64, usize)) -> Result<()> {
        let stream = device.cuda_stream();
        let (x_at, _x) = self.x.values.address(&stream);
        let with = |weight| Matrices { x: (x_at, self.x.stride), weight, out, types: self.types };
        match &self.weight {
            Held::Plain(weight) => {
                let (weight_at, _weight) = weight.values.address(&stream);
                // SAFETY: the three matrices have these sizes at these strides, and are held.
                with_handle(device, |handle| unsafe {
                    with((weight_at, weight.stride)).multiply(handle, beta, self.sizes)
                })?
            }
            // SAFETY: the same, and the blocks are those of the weight.
            Held::Packed(blocks) => unsafe { blocks.multiply(device, &with, beta, self.sizes) },
        }
    }
}

/// The tensor itself where its rows have one stride, no shorter than a row; else a contiguous copy.
fn with_rows(x: &Tensor) -> Result<Tensor> {
    let wide_enough = |stride: usize| x.dims().last().is_some_and(|&dim| stride >= dim);
    if row_stride(x).is_some_and(wide_enough) { Ok(x.clone()) } else { contiguous(x) }
}
