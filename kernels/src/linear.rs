//! A linear layer whose weight keeps its stored type, or stays packed.

use candle_core::{DType, Tensor};

use crate::error::{Result, expect};
use crate::{WeightRef, add, cast, cpu, cuda, gradient};

/// `x · weightᵀ + bias`: `x` `[rows, in]`, `weight` `[out, in]` of any float dtype, `bias` `[out]`;
/// the answer is `[rows, out]` in `x`'s dtype.
///
/// On the CPU a bf16 or f16 weight is multiplied in f32, on the current rayon pool. Where the
/// machine multiplies pairs of bf16 (AVX512-BF16), `x` is rounded to the type of a bf16 weight, and
/// only the sums are f32. A packed weight is unpacked piece by piece there, for rows in f32; one
/// that is [multiplied in bf16](crate::Packed::multiplied_in_bf16) rounds `x` too, to 16 bits of
/// one kind or another. On a GPU it is unpacked piece by piece too, rounded to `x`'s type; few rows
/// in 16 bits are multiplied with its numbers as they are. Elsewhere it is unpacked whole, in `x`'s
/// type.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn linear<'a>(x: &Tensor, weight: impl Into<WeightRef<'a>>, bias: Option<&Tensor>) -> Result<Tensor> {
    onto(None, x, weight.into(), bias, x.dtype())
}

/// As [`linear`] without a bias, with the answer in f32 (f64 for f64): sums are not rounded to
/// `x`'s dtype.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn linear_f32<'a>(x: &Tensor, weight: impl Into<WeightRef<'a>>) -> Result<Tensor> {
    let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    onto(None, x, weight.into(), None, dtype)
}

/// `residual + x · weightᵀ + bias`, in one pass where the device allows; shapes as for [`linear`],
/// `residual` `[rows, out]`. The result is in the residual's dtype, which need not be `x`'s.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn linear_onto<'a>(
    residual: &Tensor,
    x: &Tensor,
    weight: impl Into<WeightRef<'a>>,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let weight = weight.into();
    expect("linear_onto", "rows of the residual", x.dim(0)?, residual.dim(0)?)?;
    expect("linear_onto", "width of the residual", weight.dims()?[0], residual.dim(1)?)?;
    onto(Some(residual), x, weight, bias, residual.dtype())
}

/// As [`linear_onto`] without a bias, written over `residual`: every tensor that shares its storage
/// sees it. Whether it was done: on a GPU, for contiguous rows; elsewhere nothing is changed.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn add_linear<'a>(residual: &Tensor, x: &Tensor, weight: impl Into<WeightRef<'a>>) -> Result<bool> {
    let weight = weight.into();
    let [outputs, inputs] = weight.dims()?;
    expect("add_linear", "rows of the residual", x.dim(0)?, residual.dim(0)?)?;
    expect("add_linear", "width of the residual", outputs, residual.dim(1)?)?;
    expect("add_linear", "input width of the weight", x.dim(1)?, inputs)?;
    let is_nothing = residual.elem_count() == 0 || x.dim(1)? == 0;
    if is_nothing { Ok(residual.device().is_cuda()) } else { cuda::add_product(residual, x, weight) }
}

fn onto(
    residual: Option<&Tensor>,
    x: &Tensor,
    weight: WeightRef<'_>,
    bias: Option<&Tensor>,
    dtype: DType,
) -> Result<Tensor> {
    let (rows, inputs) = x.dims2()?;
    let [outputs, weight_inputs] = weight.dims()?;
    expect("linear", "input width of the weight", inputs, weight_inputs)?;
    if let Some(bias) = bias {
        expect("linear", "length of the bias", outputs, bias.dims1()?)?;
    }
    if rows == 0 {
        return cuda::nothing((0, outputs), dtype, x.device());
    }
    if inputs == 0 || outputs == 0 {
        let nothing = match rows * outputs {
            0 => cuda::nothing((rows, outputs), dtype, x.device())?,
            _ => Tensor::zeros((rows, outputs), dtype, x.device())?,
        };
        return finish(nothing, bias, residual);
    }
    if !tracked(&[Some(x), weight.plain(), bias, residual]) {
        let product = match weight {
            WeightRef::Plain(weight) => cpu::product(x, weight, bias, residual)?,
            WeightRef::Packed(packed) => cpu::product_of_packed(x, packed, bias, residual)?,
        };
        if let Some(product) = product {
            return cast(&product, dtype);
        }
        if let Some(product) = cuda::product(x, weight, (bias, residual), dtype)? {
            return Ok(product);
        }
    }
    let weight = match weight {
        WeightRef::Plain(weight) => weight,
        WeightRef::Packed(packed) => &packed.unpacked(x.dtype())?.to_device(x.device())?,
    };
    let product = match gradient::product(x, weight)? {
        Some(product) => product,
        None => plain(x, weight)?,
    };
    finish(cast(&product, dtype)?, bias, residual)
}

/// The terms that are added to a product, `[rows, out]`.
fn finish(mut product: Tensor, bias: Option<&Tensor>, residual: Option<&Tensor>) -> Result<Tensor> {
    if let Some(residual) = residual {
        product = add(residual, &product)?;
    }
    match bias {
        None => Ok(product),
        Some(bias) => Ok(product.broadcast_add(&bias.to_dtype(product.dtype())?)?),
    }
}

/// Whether a gradient is wanted: then candle must see every operation.
fn tracked(tensors: &[Option<&Tensor>]) -> bool {
    tensors.iter().flatten().any(|tensor| tensor.track_op())
}

/// In candle's operations, the answer in the type that it is summed in: f32 on the CPU, which has
/// no narrow product, and f64 for f64.
fn plain(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let wide = if x.device().is_cpu() && x.dtype() != DType::F64 { DType::F32 } else { x.dtype() };
    Ok(cast(x, wide)?.matmul(&cast(weight, wide)?.t()?)?)
}
