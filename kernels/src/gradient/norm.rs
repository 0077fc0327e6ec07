//! RMS norm with a frozen weight.
//!
//! With r = 1/√(mean(x²) + eps), y = x·r·w and dx = r·(w·dy) − x · r³/n · Σ w·dy·x.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType};

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
