//! A call of attention: queries, their positions, and the keys that they may see.

use candle_core::{DType, Tensor};

use crate::eight_bits::numbers_of_head;
use crate::error::{Error, Result, expect};
use crate::{Keys, Positions, Rope};

/// Queries and what they look at.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// `[queries, heads, head_dim]`, with the growth of their positions ([`Rope::grown`]). Heads
    /// `h·G .. (h+1)·G` share KV head `h`, G = heads / kv_heads.
    pub q: &'a Tensor,
    /// Positions of the queries.
    pub at: &'a Positions,
    /// All blocks of keys, which are attended to together.
    pub keys: &'a [Keys],
    /// With it, queries and keys are before RoPE, and the kernel rotates them to their positions;
    /// without it, they are rotated already.
    pub rope: Option<&'a Rope>,
    /// Multiplies the dot products. YaRN's attention factor, squared, is part of it
    /// ([`Rope::attention_factor`]).
    pub scale: f32,
    /// The type to which keys and values in 8 bits are unpacked: f32, bf16 or f16.
    pub dtype: DType,
}

impl Query<'_> {
    /// Keys of all blocks.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.iter().map(|block| block.at.len()).sum()
    }

    /// Whether some keys have positions per KV head.
    pub(crate) fn is_apart(&self) -> bool {
        self.keys.iter().any(|block| block.at.heads().is_some())
    }

    /// Whether candle records operations on these tensors, so that gradients can flow back.
    pub(crate) fn tracks(&self) -> bool {
        self.q.track_op() || self.keys.iter().any(|block| block.k.track_op() || block.v.track_op())
    }

    /// Checks that shapes and positions fit.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        let Self { q, at, keys, .. } = self;
        let (queries, heads, head_dim) = q.dims3()?;
        expect(op, "positions of the queries", queries, at.len())?;
        expect(op, "KV heads with positions of queries", 0, at.heads().unwrap_or(0))?;
        for block in *keys {
            let (count, kv_heads, _) = block.k.dims3()?;
            expect(op, "head_dim of the keys", head_dim, numbers_of_head(&block.k)?)?;
            expect(op, "positions of the keys", count, block.at.len())?;
            if block.v.dims() != block.k.dims() {
                let (expected, found) = (format!("{:?}", block.k.dims()), format!("{:?}", block.v.dims()));
                return Err(Error::Shape { op, what: "values", expected, found });
            }
            if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
                let expected = format!("a divisor of {heads} query heads");
                let found = kv_heads.to_string();
                return Err(Error::Shape { op, what: "KV heads", expected, found });
            }
            expect(op, "KV heads of every block", keys[0].k.dim(1)?, kv_heads)?;
            expect(op, "KV heads with positions of keys", kv_heads, block.at.heads().unwrap_or(kv_heads))?;
        }
        Ok(())
    }

    /// The same, of a call with the queries' log-sum-exp `[queries, heads]`.
    pub(crate) fn check_with(&self, op: &'static str, lse: &Tensor) -> Result<()> {
        self.check(op)?;
        let (queries, heads, _) = self.q.dims3()?;
        expect(op, "rows of lse", queries, lse.dim(0)?)?;
        expect(op, "heads of lse", heads, lse.dim(1)?)
    }
}
