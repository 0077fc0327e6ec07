//! Rows turned to their positions, and the choice of the implementation that turns them.

use candle_core::{D, DType, Tensor};

use crate::error::{Result, expect};
use crate::rows::join;
use crate::{Pairing, Positions, Rope, cpu, cuda, gradient};

impl Rope {
    /// `x` `[rows, heads, head_dim]` rotated to its positions, in f32 inside (f64 for f64) and in
    /// `x`'s dtype outside. Differentiable; a tensor that needs no gradient is rotated in one pass.
    /// Where the rows have positions per KV head, `heads` are the KV heads and each is rotated to
    /// its own positions.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if a position is beyond the tables.
    pub fn apply(&self, x: &Tensor, at: &Positions) -> Result<Tensor> {
        let (rows, heads, head_dim) = x.dims3()?;
        expect("rope", "positions", rows, at.len())?;
        if let Some(apart) = at.heads() {
            expect("rope", "KV heads with positions of rows", heads, apart)?;
            let turn = |head: usize| self.apply(&x.narrow(1, head, 1)?, at.of_head(head));
            let turned = (0..heads).map(turn).collect::<Result<Vec<_>>>()?;
            return join(&turned.iter().collect::<Vec<_>>(), 1);
        }
        self.check(head_dim, at.rope().iter().copied())?;
        if x.elem_count() == 0 {
            return Ok(x.clone());
        }
        if !x.track_op()
            && let Some(turned) = cpu::rotated(self, x, at)?
        {
            return Ok(turned);
        }
        if let Some(turned) = cuda::rotated(self, x, at)? {
            return Ok(turned);
        }
        if let Some(turned) = gradient::rotated(self, x, at)? {
            return Ok(turned);
        }
        let (half, rotary) = (self.rotary_dims() / 2, self.rotary_dims());
        let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let (cos, sin): (Vec<&[f32]>, Vec<&[f32]>) = at.rope().iter().map(|&position| self.row(position)).unzip();
        let table = |rows_of: Vec<&[f32]>| -> Result<Tensor> {
            Ok(Tensor::from_vec(rows_of.concat(), (rows, 1, half), x.device())?.to_dtype(wide)?)
        };
        let (cos, sin) = (table(cos)?, table(sin)?);
        let whole = x.to_dtype(wide)?;
        let turning = whole.narrow(D::Minus1, 0, rotary)?.contiguous()?;
        let turned = match self.pairing() {
            Pairing::Half => {
                let (a, b) = (turning.narrow(D::Minus1, 0, half)?, turning.narrow(D::Minus1, half, half)?);
                let (a, b) = rotate(&a, &b, &cos, &sin)?;
                Tensor::cat(&[a, b], D::Minus1)?
            }
            Pairing::Interleaved => {
                let pairs = turning.reshape((rows, heads, half, 2))?;
                let (a, b) = (pairs.narrow(3, 0, 1)?.squeeze(3)?, pairs.narrow(3, 1, 1)?.squeeze(3)?);
                let (a, b) = rotate(&a, &b, &cos, &sin)?;
                Tensor::stack(&[a, b], D::Minus1)?.reshape((rows, heads, rotary))?
            }
        };
        let turned = if rotary == head_dim {
            turned
        } else {
            let rest = whole.narrow(D::Minus1, rotary, head_dim - rotary)?;
            Tensor::cat(&[turned, rest], D::Minus1)?
        };
        Ok(turned.to_dtype(x.dtype())?)
    }
}

fn rotate(a: &Tensor, b: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<(Tensor, Tensor)> {
    let left = (a.broadcast_mul(cos)? - b.broadcast_mul(sin)?)?;
    let right = (b.broadcast_mul(cos)? + a.broadcast_mul(sin)?)?;
    Ok((left, right))
}
