//! The two small operations between a layer's matrix products: RMS norm and the gated activation.

use candle_core::{D, DType, Tensor};

use crate::error::{Result, expect};

/// `x / √(mean(x²) + eps) · weight` over the last dimension; `x` `[rows, dim]` or `[rows, heads, head_dim]`, `weight`
/// `[dim]` or `[head_dim]`. f32 inside, `x`'s dtype outside.
///
/// # Errors
/// Shapes that do not fit.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    expect(
        "rms_norm",
        "length of the weight",
        x.dim(D::Minus1)?,
        weight.dims1()?,
    )?;
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    let weight = weight.to_dtype(x.dtype())?;
    if x.track_op() || weight.track_op() {
        return Ok(candle_nn::ops::rms_norm_slow(
            &x.contiguous()?,
            &weight,
            eps as f32,
        )?);
    }
    Ok(candle_nn::ops::rms_norm(
        &x.contiguous()?,
        &weight,
        eps as f32,
    )?)
}

/// `silu(gate) · up`, element by element; both of one shape and dtype.
///
/// # Errors
/// Shapes that do not fit.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if gate.elem_count() == 0 {
        return Ok(gate.clone());
    }
    let wide = gate.to_dtype(DType::F32)?;
    Ok((wide.silu()?.to_dtype(up.dtype())? * up)?)
}
