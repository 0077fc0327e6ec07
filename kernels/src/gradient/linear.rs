//! The product with a frozen weight: y = x·Wᵀ, and dx = dy·W. The weight has no gradient.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType};

use super::{computes, slice, unknown, with};
use crate::cpu::{Matrix, Number, multiply};

struct Frozen {
    weight: Tensor, // [outputs, inputs]
}

/// `x · weightᵀ`: `x` `[rows, inputs]`, which takes a gradient, `weight` `[outputs, inputs]`, which
/// takes none. None where the types or the device are not those of this module.
pub(crate) fn product(x: &Tensor, weight: &Tensor) -> crate::Result<Option<Tensor>> {
    if !computes(&[x, weight]) || weight.track_op() || !weight.is_contiguous() {
        return Ok(None);
    }
    Ok(Some(x.contiguous()?.apply_op1(Frozen { weight: weight.clone() })?))
}

impl Frozen {
    /// `x · W` or, `turned`, `x · Wᵀ`.
    fn times<T: Number>(&self, x: &[T], turned: bool) -> Result<Vec<T>> {
        let (outputs, inputs) = self.weight.dims2()?;
        let (inner, columns) = if turned { (inputs, outputs) } else { (outputs, inputs) };
        let rows = x.len() / inner;
        with(&self.weight, |weight: &[T]| {
            let weight = Matrix::new(weight, outputs, inputs);
            let weight = if turned { weight.turned() } else { weight };
            let mut out = vec![T::zero(); rows * columns];
            multiply(T::ONE, Matrix::new(x, rows, inner), weight, Matrix::new(&mut out[..], rows, columns));
            Ok(out)
        })
    }

    fn back<T: Number>(&self, grad: &Tensor) -> Result<Tensor> {
        let (rows, inputs) = (grad.dim(0)?, self.weight.dim(1)?);
        let dx = with(grad, |grad: &[T]| self.times(grad, false))?;
        Tensor::from_vec(dx, (rows, inputs), grad.device())
    }
}

impl CustomOp1 for Frozen {
    fn name(&self) -> &'static str {
        "frozen linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = Shape::from((layout.dims()[0], self.weight.dim(0)?));
        let out = match storage {
            CpuStorage::F32(_) => f32::to_cpu_storage_owned(self.times::<f32>(slice(storage, layout)?, true)?),
            CpuStorage::F64(_) => f64::to_cpu_storage_owned(self.times::<f64>(slice(storage, layout)?, true)?),
            _ => return Err(unknown("frozen linear", self.weight.dtype())),
        };
        Ok((out, shape))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        match grad.dtype() {
            DType::F32 => self.back::<f32>(grad).map(Some),
            DType::F64 => self.back::<f64>(grad).map(Some),
            other => Err(unknown("frozen linear", other)),
        }
    }
}
