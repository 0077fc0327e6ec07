//! The small operations between a layer's matrix products: RMS norm, the gated activation and a sum. On the CPU each is one
//! pass over f32 on the current pool (candle's own take a pool that all ranks of a process share); elsewhere, or where a gradient is needed, candle's operations.

use candle_core::{CpuStorage, D, DType, Storage, Tensor};

use crate::cpu;
use crate::error::{Error, Result, expect};

/// `x / √(mean(x²) + eps) · weight` over the last dimension; `x` `[rows, dim]` or `[rows, heads, head_dim]`, `weight`
/// `[dim]` or `[head_dim]`. f32 inside, `x`'s dtype outside.
///
/// # Errors
/// Shapes that do not fit.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    expect("rms_norm", "length of the weight", x.dim(D::Minus1)?, weight.dims1()?)?;
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    let (x, weight) = (x.contiguous()?, weight.to_dtype(x.dtype())?.contiguous()?);
    if x.track_op() || weight.track_op() {
        return Ok(candle_nn::ops::rms_norm_slow(&x, &weight, eps as f32)?);
    }
    if let Some(out) = on_slices(&x, &weight, |x, weight| cpu::rms_norm(x, weight, eps as f32)) {
        return Ok(Tensor::from_vec(out, x.dims(), x.device())?);
    }
    Ok(candle_nn::ops::rms_norm(&x, &weight, eps as f32)?)
}

/// `silu(gate) · up`, element by element; both of one shape and dtype.
///
/// # Errors
/// Shapes that do not fit.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    element_wise("silu_mul", gate, up, cpu::silu_mul, |gate, up| {
        let wide = gate.to_dtype(DType::F32)?.silu()?;
        Ok((wide.to_dtype(up.dtype())? * up)?)
    })
}

/// `a + b`, element by element; both of one shape and dtype.
///
/// # Errors
/// Shapes that do not fit.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    element_wise("add", a, b, cpu::add, |a, b| Ok((a + b)?))
}

/// `fast` on the values of two f32 tensors on the CPU of which no gradient is wanted, else `plain`.
fn element_wise(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    fast: fn(&[f32], &[f32]) -> Vec<f32>,
    plain: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if a.dims() != b.dims() {
        let (expected, found) = (format!("{:?}", a.dims()), format!("{:?}", b.dims()));
        return Err(Error::Shape { op, what: "the second tensor", expected, found });
    }
    if a.elem_count() == 0 {
        return Ok(a.clone());
    }
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    if !a.track_op()
        && !b.track_op()
        && let Some(out) = on_slices(&a, &b, fast)
    {
        return Ok(Tensor::from_vec(out, a.dims(), a.device())?);
    }
    plain(&a, &b)
}

/// Calls `work` with two contiguous tensors, if both are f32 on the CPU.
fn on_slices(a: &Tensor, b: &Tensor, work: impl Fn(&[f32], &[f32]) -> Vec<f32>) -> Option<Vec<f32>> {
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
