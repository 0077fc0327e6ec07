//! The input and output of attention: keys in blocks, the partial result that merges exactly with
//! the rest, and the ways of reading the attention that a key receives.

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::{Positions, cuda, join};

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

impl Partial {
    /// `count` of its rows from `from` on.
    ///
    /// # Errors
    /// Returns an error if there are fewer rows.
    pub fn rows(&self, from: usize, count: usize) -> Result<Self> {
        Ok(Self { out: self.out.narrow(0, from, count)?, lse: self.lse.narrow(0, from, count)? })
    }

    /// The rows of all parts, one part below the other.
    ///
    /// # Errors
    /// Returns an error if there is no part, or if their shapes do not fit.
    pub fn below_each_other(parts: &[Self]) -> Result<Self> {
        let filled: Vec<&Self> = parts.iter().filter(|part| part.lse.dims()[0] > 0).collect();
        match (&*filled, parts) {
            ([], [first, ..]) => Ok(first.clone()),
            ([one], _) => Ok((*one).clone()),
            (several, _) => Self::joined(several, 0),
        }
    }

    /// The heads of all parts, which have the same rows, one part beside the other.
    ///
    /// # Errors
    /// Returns an error if there is no part, or if their shapes do not fit.
    pub fn beside_each_other(parts: &[Self]) -> Result<Self> {
        Self::joined(&parts.iter().collect::<Vec<_>>(), 1)
    }

    fn joined(parts: &[&Self], dim: usize) -> Result<Self> {
        let of = |pick: fn(&Self) -> &Tensor| join(&parts.iter().map(|part| pick(part)).collect::<Vec<_>>(), dim);
        Ok(Self { out: of(|part| &part.out)?, lse: of(|part| &part.lse)? })
    }

    /// An output `[queries, heads, head_dim]` that is merged with nothing: its log-sum-exp is
    /// given as 0.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn of_output(out: Tensor) -> Result<Self> {
        let (queries, heads, _) = out.dims3()?;
        let lse = match queries * heads {
            0 => cuda::nothing((queries, heads), DType::F32, out.device())?,
            _ => Tensor::zeros((queries, heads), DType::F32, out.device())?,
        };
        Ok(Self { lse, out })
    }
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
    /// For each query row, the largest of all heads: `[queries, keys]`.
    Largest,
}
