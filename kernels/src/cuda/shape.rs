//! Shapes of a call of attention, and those that the kernels are made for.

use candle_core::{DType, Tensor};

use super::sight::ROW_BITS;
use crate::error::Result;
use crate::{Keys, Rope};

/// The most heads that may share a KV head: the rows of the smallest tile of queries.
const MAX_GROUP: usize = 64;

/// Whether attention has kernels for heads of this size and type. Others take candle's operations,
/// which hold every dot product at once.
pub fn attends(head_dim: usize, dtype: DType) -> bool {
    matches!(head_dim, 32 | 64 | 96 | 128 | 256) && matches!(dtype, DType::BF16 | DType::F16)
}

/// Bytes of a row of a tile in shared memory (`ROW_BYTES` in tile64.cuh).
pub(super) fn row_bytes(head_dim: usize) -> usize {
    head_dim.next_power_of_two().max(64) * 2
}

/// Shapes of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub queries: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Shape {
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// The shapes of a call that the kernels are made for; `None` where candle's operations must do.
pub(super) fn shape(q: &Tensor, keys: &[Keys], rope: Option<&Rope>) -> Result<Option<Shape>> {
    let (queries, heads, head_dim) = q.dims3()?;
    let Some(block) = keys.first() else { return Ok(None) };
    let shape = Shape { queries, heads, kv_heads: block.k.dim(1)?, head_dim };
    let turns = rope.is_none_or(|rope| rope.rotary_dims().is_multiple_of(16));
    let rows: usize = keys.iter().map(|block| block.at.len()).sum();
    let alike = keys.iter().all(|block| block.k.dtype() == q.dtype() && block.v.dtype() == q.dtype());
    let fits = turns && shape.group() <= MAX_GROUP && rows < 1 << ROW_BITS && alike;
    Ok((fits && attends(head_dim, q.dtype()) && q.device().is_cuda()).then_some(shape))
}
