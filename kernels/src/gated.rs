//! Gated activations: what a feed-forward layer makes of the products with its two wide matrices.

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::gate::{CLAMPED_FACTOR, Gate};
use crate::norm::ElementWise;
use crate::{WeightRef, cpu, cuda, gradient, linear};

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

/// The activation of `gate` and `up`, the products of `x` `[rows, in]` with two weights
/// `[out, in]`, biases `[out]` added, as [`linear`] and [`gated`] make them, bit by bit. Many rows
/// on the CPU are made in one pass, which keeps neither product whole.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn gated_linear(x: &Tensor, weights: [WeightRef<'_>; 2], biases: [Option<&Tensor>; 2], by: Gate) -> Result<Tensor> {
    let [gate, up] = weights;
    let tensors = [Some(x), gate.plain(), up.plain(), biases[0], biases[1]];
    if fits(x, weights, biases)?
        && !tensors.into_iter().flatten().any(Tensor::track_op)
        && let Some(out) = cpu::gated_product(x, weights, biases, by)?
    {
        return Ok(out);
    }
    gated(&linear(x, gate, biases[0])?, &linear(x, up, biases[1])?, by)
}

/// Whether there is something to multiply, and all shapes fit.
fn fits(x: &Tensor, weights: [WeightRef<'_>; 2], biases: [Option<&Tensor>; 2]) -> Result<bool> {
    let [outputs, inputs] = weights[0].dims()?;
    let are_of_a_length = biases.into_iter().flatten().all(|bias| bias.dims() == [outputs]);
    Ok(x.dims2()?.1 == inputs && weights[1].dims()? == [outputs, inputs] && are_of_a_length && inputs * outputs > 0)
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
