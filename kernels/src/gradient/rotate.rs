//! Rows turned to their positions, whose gradient is turned back.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType};

use super::{computes, slice, unknown, with};
use crate::cpu::Number;
use crate::{Pairing, Positions, Rope};

struct Turn {
    rope: Rope,
    at: Positions,
}

/// See [`Rope::apply`]; positions are the same for all heads, and within the tables. None where the
/// type or the device is not of this module.
pub(crate) fn rotated(rope: &Rope, x: &Tensor, at: &Positions) -> crate::Result<Option<Tensor>> {
    if !computes(&[x]) {
        return Ok(None);
    }
    Ok(Some(x.contiguous()?.apply_op1(Turn { rope: rope.clone(), at: at.clone() })?))
}

impl Turn {
    /// Rows `[rows, heads, head_dim]` turned forward, or back with `sign` −1.
    fn turn<T: Number>(&self, x: &[T], dims: (usize, usize, usize), sign: f64) -> Vec<T> {
        let (_, heads, head_dim) = dims;
        let half = self.rope.rotary_dims() / 2;
        let mut out = x.to_vec();
        for (row, &position) in out.chunks_mut(heads * head_dim).zip(self.at.rope()) {
            let (cos, sin) = self.rope.row(position);
            let turns: Vec<(T, T)> =
                cos.iter().zip(sin).map(|(&c, &s)| (T::from_f64(c.into()), T::from_f64(sign * f64::from(s)))).collect();
            for head in row.chunks_mut(head_dim) {
                for (i, &(cos, sin)) in turns.iter().enumerate() {
                    let (a, b) = match self.rope.pairing() {
                        Pairing::Half => (i, i + half),
                        Pairing::Interleaved => (2 * i, 2 * i + 1),
                    };
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                }
            }
        }
        out
    }

    fn back<T: Number>(&self, grad: &Tensor) -> Result<Tensor> {
        let dims = grad.dims3()?;
        let dx = with(grad, |grad: &[T]| Ok(self.turn(grad, dims, -1.0)))?;
        Tensor::from_vec(dx, dims, grad.device())
    }
}

impl CustomOp1 for Turn {
    fn name(&self) -> &'static str {
        "rotary embedding"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let dims = layout.shape().dims3()?;
        let out = match storage {
            CpuStorage::F32(_) => f32::to_cpu_storage_owned(self.turn::<f32>(slice(storage, layout)?, dims, 1.0)),
            CpuStorage::F64(_) => f64::to_cpu_storage_owned(self.turn::<f64>(slice(storage, layout)?, dims, 1.0)),
            _ => return Err(unknown("rotary embedding", DType::F32)),
        };
        Ok((out, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        match grad.dtype() {
            DType::F32 => self.back::<f32>(grad).map(Some),
            DType::F64 => self.back::<f64>(grad).map(Some),
            other => Err(unknown("rotary embedding", other)),
        }
    }
}
