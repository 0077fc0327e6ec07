//! Rotation of whole tensors, in one pass on the current pool: for keys that are rotated once and
//! used many times.

use candle_core::{DType, Tensor};
use rayon::prelude::*;

use super::pack::rotate;
use crate::error::Result;
use crate::{Positions, Rope};

/// Rows that a thread turns at a time.
const ROWS_AT_ONCE: usize = 64;

/// `x` `[rows, heads, head_dim]` rotated to its positions, which are within the tables; `None`
/// where it is not a float tensor on the CPU.
pub(crate) fn rotated(rope: &Rope, x: &Tensor, at: &Positions) -> Result<Option<Tensor>> {
    if !x.device().is_cpu() || !matches!(x.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        return Ok(None);
    }
    let (rows, heads, head_dim) = x.dims3()?;
    assert_eq!(rows, at.len(), "positions of the rows that turn");
    let mut values = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    let rows = values.par_chunks_exact_mut(heads * head_dim).zip(at.rope().par_iter());
    rows.with_min_len(ROWS_AT_ONCE).for_each(|(row, &position)| {
        row.chunks_exact_mut(head_dim).for_each(|head| rotate(head, rope, position));
    });
    Ok(Some(Tensor::from_vec(values, x.dims(), x.device())?.to_dtype(x.dtype())?))
}
