//! Movement of rows: a token is one contiguous row, gathered and replaced by index. Works on any device and dtype, and
//! is differentiable.

use candle_core::Tensor;

use crate::error::{Result, expect};

/// The rows of `x` (dimension 0) at `indices`, in that order.
///
/// # Errors
/// An index beyond the rows.
pub fn gather(x: &Tensor, indices: &[u32]) -> Result<Tensor> {
    if indices.is_empty() {
        return Ok(x.narrow(0, 0, 0)?);
    }
    let list = Tensor::from_slice(indices, indices.len(), x.device())?;
    Ok(x.contiguous()?.index_select(&list, 0)?)
}

/// `base` with its rows at `indices` replaced by `rows`, in that order; `base` itself is left alone. Where an index
/// occurs twice, its last row counts.
///
/// # Errors
/// Shapes that do not fit, an index beyond the rows.
pub fn scatter(base: &Tensor, indices: &[u32], rows: &Tensor) -> Result<Tensor> {
    expect("scatter", "rows", indices.len(), rows.dim(0)?)?;
    if indices.is_empty() {
        return Ok(base.clone());
    }
    let count = base.dim(0)?;
    let mut source: Vec<u32> = (0..count as u32).collect();
    for (row, &index) in indices.iter().enumerate() {
        match source.get_mut(index as usize) {
            Some(entry) => *entry = (count + row) as u32,
            None => expect("scatter", "rows of the base, at least", index as usize + 1, count)?,
        }
    }
    gather(&Tensor::cat(&[base, rows], 0)?, &source)
}
