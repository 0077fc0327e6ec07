//! Gated activations: what a feed-forward layer makes of the products with its two wide matrices.

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::gate::{CLAMPED_FACTOR, Gate};
use crate::norm::ElementWise;
use crate::{cpu, cuda, gradient};

/// The activation of `gate` and `up`, element by element; both of one shape and dtype. A NaN stays
/// one.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn gated(gate: &Tensor, up: &Tensor, by: Gate) -> Result<Tensor> {
    ElementWise {
        op: "gated",
        fast: &|gate, up| cpu::gated(gate, up, by),
        on_gpu: &|gate, up| cuda::gated(gate, up, by),
        plain: &|gate, up| match gradient::gated(gate, up, by)? {
            Some(out) => Ok(out),
            None => plain(gate, up, by),
        },
    }
    .of(gate, up)
}

/// In candle's operations, inside in f32 (f64 for f64, but not SiLU).
fn plain(gate: &Tensor, up: &Tensor, by: Gate) -> Result<Tensor> {
    let dtype = up.dtype();
    let wide = |x: &Tensor| x.to_dtype(if dtype == DType::F64 { DType::F64 } else { DType::F32 });
    let out = match by {
        Gate::Silu => return Ok((gate.to_dtype(DType::F32)?.silu()?.to_dtype(dtype)? * up)?),
        Gate::GeluTanh => (wide(gate)?.gelu()? * wide(up)?)?,
        Gate::ClampedSilu { limit } => {
            let gate = wide(gate)?.minimum(f64::from(limit))?;
            let up = wide(up)?.clamp(-f64::from(limit), f64::from(limit))?;
            let silu = (candle_nn::ops::sigmoid(&(&gate * CLAMPED_FACTOR)?)? * gate)?;
            (silu * (up + 1.0)?)?
        }
    };
    Ok(out.to_dtype(dtype)?)
}
