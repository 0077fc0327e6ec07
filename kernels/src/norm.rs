//! The small operations between a layer's matrix products: norms, sums, factors, changes
//! of dtype, and what all that take two tensors element by element share. On the CPU each is one
//! pass over f32 on the current pool (candle's own take a pool that all ranks of a process share),
//! on a GPU one launch; elsewhere, or where a gradient is needed, candle's operations.

use candle_core::{CpuStorage, D, DType, Storage, Tensor};

use crate::error::{Error, Result, expect};
use crate::{cpu, cuda, gradient};

/// `x / √(mean(x²) + eps) · weight` over the last dimension; `x` `[rows, dim]` or
/// `[rows, heads, head_dim]`, `weight` `[dim]` or `[head_dim]`. f32 inside, `x`'s dtype outside.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    expect("rms_norm", "length of the weight", x.dim(D::Minus1)?, weight.dims1()?)?;
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    if let Some(out) = cuda::rms_norm(x, weight, eps as f32)? {
        return Ok(out);
    }
    let (x, weight) = (x.contiguous()?, weight.to_dtype(x.dtype())?.contiguous()?);
    if (x.track_op() || x.dtype() == DType::F64)
        && let Some(out) = gradient::rms_norm(&x, &weight, eps)?
    {
        return Ok(out);
    }
    if x.track_op() || weight.track_op() {
        return Ok(candle_nn::ops::rms_norm_slow(&x, &weight, eps as f32)?);
    }
    if let Some(out) = on_slices(&x, &weight, |x, weight| cpu::rms_norm(x, weight, eps as f32)) {
        return Ok(Tensor::from_vec(out, x.dims(), x.device())?);
    }
    Ok(candle_nn::ops::rms_norm(&x, &weight, eps as f32)?)
}

/// `(x − mean(x)) / √(mean((x − mean(x))²) + eps) · weight + bias` over the last dimension; `x`
/// `[rows, dim]`, `weight` and `bias` `[dim]`. f32 inside (f64 for f64), `x`'s dtype outside.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    let dim = x.dim(D::Minus1)?;
    expect("layer_norm", "length of the weight", dim, weight.dims1()?)?;
    expect("layer_norm", "length of the bias", dim, bias.dims1()?)?;
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    let of_x = |numbers: &Tensor| -> Result<Tensor> { Ok(numbers.to_dtype(x.dtype())?.contiguous()?) };
    let (x, weight, bias) = (x.contiguous()?, of_x(weight)?, of_x(bias)?);
    if x.track_op() || weight.track_op() || bias.track_op() || x.dtype() == DType::F64 {
        return Ok(candle_nn::ops::layer_norm_slow(&x, &weight, &bias, eps as f32)?);
    }
    if x.dtype() == DType::F32 && x.device().is_cpu() {
        let bias = bias.to_vec1::<f32>()?;
        if let Some(out) = on_slices(&x, &weight, |x, weight| cpu::layer_norm(x, weight, &bias, eps as f32)) {
            return Ok(Tensor::from_vec(out, x.dims(), x.device())?);
        }
    }
    Ok(candle_nn::ops::layer_norm(&x, &weight, &bias, eps as f32)?)
}

/// `a + b`, element by element; both of one shape and dtype.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ElementWise { op: "add", fast: &cpu::add, on_gpu: &cuda::add, plain: &|a, b| Ok((a + b)?) }.of(a, b)
}

/// `factor · x`, element by element.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn scale(x: &Tensor, factor: f32) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    match cuda::scale(x, factor, None)? {
        Some(scaled) => Ok(scaled),
        None => Ok(x.affine(f64::from(factor), 0.0)?),
    }
}

/// `x` `[rows, ..]`, each row times its own of `factors` `[rows]` f32.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn scale_rows(x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let rows = x.dim(0)?;
    expect("scale_rows", "rows with a factor", rows, factors.dims1()?)?;
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    if let Some(scaled) = cuda::scale(x, 1.0, Some(factors))? {
        return Ok(scaled);
    }
    let shape: Vec<usize> = x.dims().iter().enumerate().map(|(dim, _)| if dim == 0 { rows } else { 1 }).collect();
    Ok(x.broadcast_mul(&factors.reshape(shape)?.to_dtype(x.dtype())?)?)
}

/// Work on the values of two tensors.
pub(crate) type OnSlices<'a> = dyn Fn(&[f32], &[f32]) -> Vec<f32> + 'a;

/// An operation on two tensors, element by element.
pub(crate) struct ElementWise<'a> {
    pub(crate) op: &'static str,
    /// On the values of f32 tensors on the CPU, where no gradient is wanted.
    pub(crate) fast: &'a OnSlices<'a>,
    /// On a GPU, for tensors that it knows.
    pub(crate) on_gpu: &'a dyn Fn(&Tensor, &Tensor) -> Result<Option<Tensor>>,
    /// Everywhere else.
    pub(crate) plain: &'a dyn Fn(&Tensor, &Tensor) -> Result<Tensor>,
}

impl ElementWise<'_> {
    pub(crate) fn of(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        same_shape(self.op, a, b)?;
        if a.elem_count() == 0 {
            return Ok(a.clone());
        }
        if let Some(out) = (self.on_gpu)(a, b)? {
            return Ok(out);
        }
        let (a, b) = (a.contiguous()?, b.contiguous()?);
        if !a.track_op()
            && !b.track_op()
            && let Some(out) = on_slices(&a, &b, self.fast)
        {
            return Ok(Tensor::from_vec(out, a.dims(), a.device())?);
        }
        (self.plain)(&a, &b)
    }
}

fn same_shape(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dims() == b.dims() {
        return Ok(());
    }
    let (expected, found) = (format!("{:?}", a.dims()), format!("{:?}", b.dims()));
    Err(Error::Shape { op, what: "the second tensor", expected, found })
}

/// `x` in another dtype: the same tensor where it has it already.
///
/// # Errors
/// Returns an error if candle does not convert the dtype.
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.elem_count() == 0 && x.dtype() != dtype {
        return cuda::nothing(x.shape(), dtype, x.device());
    }
    if let Some(cast) = cuda::cast(x, dtype)? {
        return Ok(cast);
    }
    if dtype == DType::BF16 && x.is_contiguous() && !x.track_op() {
        let held = x.storage_and_layout();
        if let Storage::Cpu(CpuStorage::F32(numbers)) = &*held.0 {
            let numbers = &numbers[held.1.start_offset()..][..x.elem_count()];
            return Ok(Tensor::from_vec(cpu::to_bf16(numbers), x.shape(), x.device())?);
        }
    }
    Ok(x.to_dtype(dtype)?)
}

/// Calls `work` with two contiguous tensors, if both are f32 on the CPU.
pub(crate) fn on_slices(a: &Tensor, b: &Tensor, work: impl Fn(&[f32], &[f32]) -> Vec<f32>) -> Option<Vec<f32>> {
    let (a, b) = (a.storage_and_layout(), b.storage_and_layout());
    match (&*a.0, &*b.0) {
        (Storage::Cpu(CpuStorage::F32(list_a)), Storage::Cpu(CpuStorage::F32(list_b))) => {
            let list_a = &list_a[a.1.start_offset()..][..a.1.shape().elem_count()];
            let list_b = &list_b[b.1.start_offset()..][..b.1.shape().elem_count()];
            Some(work(list_a, list_b))
        }
        _ => None,
    }
}
