//! GELU without a partner (Hendrycks & Gimpel 2016, "Gaussian Error Linear Units", section 2), in
//! both of its forms: they differ by up to 5e-4, and a model means one of them.

use candle_core::{DType, Tensor};

use crate::cpu;
use crate::error::Result;
use crate::norm::on_slices;

/// A form of GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// `½ · x · (1 + erf(x / √2))`.
    Exact,
    /// `½ · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`.
    Tanh,
}

/// GELU of `x`, element by element, in its dtype; f32 inside (f64 for f64).
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn gelu(x: &Tensor, form: Gelu) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    if !x.track_op() {
        let x = x.contiguous()?;
        let fast = on_slices(&x, &x, |values, _| match form {
            Gelu::Exact => cpu::gelu_exact(values),
            Gelu::Tanh => cpu::gelu_tanh(values),
        });
        if let Some(out) = fast {
            return Ok(Tensor::from_vec(out, x.dims(), x.device())?);
        }
    }
    let wide = x.to_dtype(if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 })?;
    let out = match form {
        Gelu::Exact => wide.gelu_erf()?,
        Gelu::Tanh => wide.gelu()?,
    };
    Ok(out.to_dtype(x.dtype())?)
}
