//! The input and output of attention: keys in blocks, the partial result that merges exactly with
//! the rest, and the ways of reading the attention that a key receives.

use candle_core::Tensor;

use crate::Positions;

/// One block of keys and values with their positions. Blocks are not copied together: attention
/// walks over them.
#[derive(Debug, Clone)]
pub struct Keys {
    /// `[keys, kv_heads, head_dim]`; before RoPE when attention is given a [`Rope`](crate::Rope),
    /// rotated when it is given none.
    pub k: Tensor,
    /// `[keys, kv_heads, head_dim]`.
    pub v: Tensor,
    /// Positions of the keys: the same in every KV head, or different in each
    /// ([`Positions::per_head`]).
    pub at: Positions,
}

/// Attention over some of the keys, with the log-sum-exp that merges it exactly with the rest.
#[derive(Debug, Clone)]
pub struct Partial {
    /// `[queries, heads, head_dim]`, normalised over the keys that were seen; 0 where none was. In
    /// f32 on a CPU (f64 where the queries are), in the queries' dtype on a device.
    pub out: Tensor,
    /// `[queries, heads]` f32: natural logarithm of the softmax denominator; −∞ where no key was
    /// seen.
    pub lse: Tensor,
}

/// Reduction of the attention that a key receives from several query rows to one number. `p[i]` is
/// the attention of query row `i` to the key, averaged over the heads.
#[derive(Debug, Clone, Copy)]
pub enum Reduce<'a> {
    /// √Σ p\[i\]² (InfoFlow's norm score).
    Norm,
    /// Σ p\[i\].
    Mass,
    /// Σ w\[i\]·p\[i\], one weight a query row.
    Weighted(&'a [f32]),
}

/// Readings of the attention that a key receives, without a reduction to one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readings {
    /// For each KV head, the sum over the query rows of the mean over its heads:
    /// `[kv_heads, keys]`.
    PerKvHead,
    /// For each query row, the mean over all heads: `[queries, keys]`.
    PerRow,
}
