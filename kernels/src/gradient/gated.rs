//! The gated activations.
//!
//! All are y = g·σ(t)·v, where t depends on the gate g alone and v on its partner u alone, and
//! σ(t) = 1/(1 + e^(−t)). So dg = dy·v·σ·(1 + g·(1 − σ)·t′) and du = dy·g·σ·v′. Where a limit takes
//! the place of g or u, its gradient is 0.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, WithDType};

use super::{computes, slice, unknown, with};
use crate::cpu::Number;
use crate::gate::{CLAMPED_FACTOR, GELU_BOUND, GELU_CUBE, GELU_FACTOR, Gate};

struct Gated(Gate);

/// See [`crate::gated`]. None where the types or the device are not those of this module.
pub(crate) fn gated(gate: &Tensor, up: &Tensor, by: Gate) -> crate::Result<Option<Tensor>> {
    if !computes(&[gate, up]) {
        return Ok(None);
    }
    Ok(Some(gate.contiguous()?.apply_op2(&up.contiguous()?, Gated(by))?))
}

/// σ(x).
fn sigmoid<T: Number>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// `x` within bounds, and whether it is: a NaN is.
fn within<T: Number>(x: T, lowest: T, highest: T) -> (T, bool) {
    if x > highest {
        (highest, false)
    } else if x < lowest {
        (lowest, false)
    } else {
        (x, true)
    }
}

/// The terms of one number.
struct Terms<T> {
    /// g.
    gate: T,
    /// σ(t).
    sigma: T,
    /// t′; None where g is its limit.
    slope: Option<T>,
    /// v.
    up: T,
    /// Whether u is not its limit: v′ is then 1.
    is_up_free: bool,
}

impl<T: Number> Terms<T> {
    fn new(by: Gate, gate: T, up: T) -> Self {
        match by {
            Gate::Silu => Self { gate, sigma: sigmoid(gate), slope: Some(T::ONE), up, is_up_free: true },
            Gate::GeluTanh => {
                let (factor, cube, bound) = (T::from_f64(GELU_FACTOR), T::from_f64(GELU_CUBE), T::from_f64(GELU_BOUND));
                let (g, _) = within(gate, -bound, bound); // its cube is finite, and σ is the same
                let slope = factor * (T::ONE + T::from_f64(3.0) * cube * g * g);
                let sigma = sigmoid(factor * (g + cube * g * g * g));
                Self { gate, sigma, slope: Some(slope), up, is_up_free: true }
            }
            Gate::ClampedSilu { limit } => {
                let (limit, factor) = (T::from_f64(f64::from(limit)), T::from_f64(CLAMPED_FACTOR));
                let (gate, is_free) = if gate > limit { (limit, false) } else { (gate, true) };
                let (up, is_up_free) = within(up, -limit, limit);
                Self {
                    gate,
                    sigma: sigmoid(factor * gate),
                    slope: is_free.then_some(factor),
                    up: up + T::ONE,
                    is_up_free,
                }
            }
        }
    }

    fn forward(self) -> T {
        self.gate * self.sigma * self.up
    }

    /// dg and du.
    fn back(self, grad: T) -> (T, T) {
        let Self { gate, sigma, slope, up, is_up_free } = self;
        let pull = |slope| grad * up * sigma * (T::ONE + gate * (T::ONE - sigma) * slope);
        (slope.map_or(T::zero(), pull), if is_up_free { grad * gate * sigma } else { T::zero() })
    }
}

impl Gated {
    fn forward<T: Number>(&self, gate: &[T], up: &[T]) -> Vec<T> {
        gate.iter().zip(up).map(|(&gate, &up)| Terms::new(self.0, gate, up).forward()).collect()
    }

    fn back<T: Number>(&self, gate: &Tensor, up: &Tensor, grad: &Tensor) -> Result<(Tensor, Tensor)> {
        let (dgate, dup) = with(gate, |gate: &[T]| {
            with(up, |up: &[T]| {
                with(grad, |grad: &[T]| {
                    let triples = gate.iter().zip(up).zip(grad);
                    let pulls = triples.map(|((&gate, &up), &grad)| Terms::new(self.0, gate, up).back(grad));
                    Ok(pulls.unzip::<T, T, Vec<T>, Vec<T>>())
                })
            })
        })?;
        Ok((Tensor::from_vec(dgate, gate.dims(), gate.device())?, Tensor::from_vec(dup, up.dims(), up.device())?))
    }
}

impl CustomOp2 for Gated {
    fn name(&self) -> &'static str {
        "gated activation"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        at_gate: &Layout,
        up: &CpuStorage,
        at_up: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let out = match gate {
            CpuStorage::F32(_) => {
                f32::to_cpu_storage_owned(self.forward::<f32>(slice(gate, at_gate)?, slice(up, at_up)?))
            }
            CpuStorage::F64(_) => {
                f64::to_cpu_storage_owned(self.forward::<f64>(slice(gate, at_gate)?, slice(up, at_up)?))
            }
            _ => return Err(unknown("gated activation", DType::F32)),
        };
        Ok((out, at_gate.shape().clone()))
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dgate, dup) = match grad.dtype() {
            DType::F32 => self.back::<f32>(gate, up, grad)?,
            DType::F64 => self.back::<f64>(gate, up, grad)?,
            other => return Err(unknown("gated activation", other)),
        };
        Ok((Some(dgate), Some(dup)))
    }
}
