//! A linear layer whose weight stays stored as it is.

use candle_core::{DType, Tensor};

use crate::error::{Result, expect};

/// Output rows of a narrow weight that are widened at a time.
const TILE_ROWS: usize = 256;

/// `x · weightᵀ + bias`: `x` `[rows, in]`, `weight` `[out, in]` of any float dtype, `bias` `[out]`; the answer is
/// `[rows, out]` in `x`'s dtype.
///
/// On the CPU a bf16 or f16 weight is multiplied in f32, a tile of its rows widened at a time.
///
/// # Errors
/// Shapes that do not fit.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (rows, inputs) = x.dims2()?;
    let (outputs, weight_inputs) = weight.dims2()?;
    expect("linear", "input width of the weight", inputs, weight_inputs)?;
    if rows == 0 {
        return Ok(Tensor::zeros((0, outputs), x.dtype(), x.device())?);
    }
    let product = product(x, weight)?;
    match bias {
        None => Ok(product),
        Some(bias) => {
            expect("linear", "length of the bias", outputs, bias.dims1()?)?;
            Ok(product.broadcast_add(&bias.to_dtype(x.dtype())?)?)
        }
    }
}

fn product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let wide = if x.device().is_cpu() { DType::F32 } else { x.dtype() };
    if weight.dtype() == wide || !x.device().is_cpu() {
        let x_wide = x.to_dtype(wide)?;
        return Ok(x_wide.matmul(&weight.to_dtype(wide)?.t()?)?.to_dtype(x.dtype())?);
    }
    let x_wide = x.to_dtype(wide)?;
    let outputs = weight.dim(0)?;
    let tiles = (0..outputs).step_by(TILE_ROWS).map(|from| -> Result<Tensor> {
        let tile = weight.narrow(0, from, TILE_ROWS.min(outputs - from))?.to_dtype(wide)?;
        Ok(x_wide.matmul(&tile.t()?)?)
    });
    let tiles = tiles.collect::<Result<Vec<_>>>()?;
    Ok(Tensor::cat(&tiles, 1)?.to_dtype(x.dtype())?)
}
