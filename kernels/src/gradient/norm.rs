//! RMS norm with a frozen weight, and the gated activation.
//!
//! With r = 1/√(mean(x²) + eps), y = x·r·w and dx = r·(w·dy) − x · r³/n · Σ w·dy·x. With σ = 1/(1 +
//! e^(−g)), y = g·σ·u, dg = dy·u·σ·(1 + g·(1 − σ)) and du = dy·g·σ.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Layout, Result, Shape, Tensor, WithDType};

use super::{computes, slice, unknown, with};
use crate::cpu::Number;

struct Norm {
    weight: Tensor, // [dim]
    eps: f64,
}

/// See [`crate::rms_norm`]; `weight` takes no gradient. None where the types or the device are not
/// those of this module.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> crate::Result<Option<Tensor>> {
    if !computes(&[x, weight]) || weight.track_op() {
        return Ok(None);
    }
    Ok(Some(x.contiguous()?.apply_op1(Norm { weight: weight.clone(), eps })?))
}

/// See [`crate::silu_mul`]. None where the types or the device are not those of this module.
pub(crate) fn silu_mul(gate: &Tensor, up: &Tensor) -> crate::Result<Option<Tensor>> {
    if !computes(&[gate, up]) {
        return Ok(None);
    }
    Ok(Some(gate.contiguous()?.apply_op2(&up.contiguous()?, Gated)?))
}

impl Norm {
    /// 1/√(mean(x²) + eps) of a row.
    fn factor<T: Number>(&self, row: &[T]) -> T {
        let sum = row.iter().fold(T::zero(), |sum, &x| sum + x * x);
        T::ONE / (sum / T::from_f64(row.len() as f64) + T::from_f64(self.eps)).sqrt()
    }

    fn forward<T: Number>(&self, x: &[T]) -> Result<Vec<T>> {
        with(&self.weight, |weight: &[T]| {
            let mut out = Vec::with_capacity(x.len());
            for row in x.chunks(weight.len()) {
                let factor = self.factor(row);
                out.extend(row.iter().zip(weight).map(|(&x, &weight)| x * factor * weight));
            }
            Ok(out)
        })
    }

    fn back<T: Number>(&self, x: &Tensor, grad: &Tensor) -> Result<Tensor> {
        let dx = with(&self.weight, |weight: &[T]| {
            with(x, |x: &[T]| {
                with(grad, |grad: &[T]| {
                    let dim = weight.len();
                    let mut dx = Vec::with_capacity(x.len());
                    for (row, grad) in x.chunks(dim).zip(grad.chunks(dim)) {
                        let factor = self.factor(row);
                        let terms = row.iter().zip(grad).zip(weight);
                        let sum = terms.fold(T::zero(), |sum, ((&x, &g), &w)| sum + x * g * w);
                        let pull = factor * factor * factor * sum / T::from_f64(dim as f64);
                        let terms = row.iter().zip(grad).zip(weight);
                        dx.extend(terms.map(|((&x, &g), &w)| factor * w * g - x * pull));
                    }
                    Ok(dx)
                })
            })
        })?;
        Tensor::from_vec(dx, x.dims(), x.device())
    }
}

impl CustomOp1 for Norm {
    fn name(&self) -> &'static str {
        "frozen norm"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = match storage {
            CpuStorage::F32(_) => f32::to_cpu_storage_owned(self.forward::<f32>(slice(storage, layout)?)?),
            CpuStorage::F64(_) => f64::to_cpu_storage_owned(self.forward::<f64>(slice(storage, layout)?)?),
            _ => return Err(unknown("frozen norm", self.weight.dtype())),
        };
        Ok((out, layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        match grad.dtype() {
            DType::F32 => self.back::<f32>(x, grad).map(Some),
            DType::F64 => self.back::<f64>(x, grad).map(Some),
            other => Err(unknown("frozen norm", other)),
        }
    }
}

struct Gated;

/// σ(x).
fn sigmoid<T: Number>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

impl Gated {
    fn forward<T: Number>(gate: &[T], up: &[T]) -> Vec<T> {
        gate.iter().zip(up).map(|(&gate, &up)| gate * sigmoid(gate) * up).collect()
    }

    fn back<T: Number>(gate: &Tensor, up: &Tensor, grad: &Tensor) -> Result<(Tensor, Tensor)> {
        let (dgate, dup) = with(gate, |gate: &[T]| {
            with(up, |up: &[T]| {
                with(grad, |grad: &[T]| {
                    let pairs = gate.iter().zip(up).zip(grad).map(|((&gate, &up), &grad)| {
                        let sigma = sigmoid(gate);
                        (grad * up * sigma * (T::ONE + gate * (T::ONE - sigma)), grad * gate * sigma)
                    });
                    Ok(pairs.unzip::<T, T, Vec<T>, Vec<T>>())
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
                f32::to_cpu_storage_owned(Self::forward::<f32>(slice(gate, at_gate)?, slice(up, at_up)?))
            }
            CpuStorage::F64(_) => {
                f64::to_cpu_storage_owned(Self::forward::<f64>(slice(gate, at_gate)?, slice(up, at_up)?))
            }
            _ => return Err(unknown("gated activation", DType::F32)),
        };
        Ok((out, at_gate.shape().clone()))
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dgate, dup) = match grad.dtype() {
            DType::F32 => Self::back::<f32>(gate, up, grad)?,
            DType::F64 => Self::back::<f64>(gate, up, grad)?,
            other => return Err(unknown("gated activation", other)),
        };
        Ok((Some(dgate), Some(dup)))
    }
}
