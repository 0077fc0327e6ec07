//! Low-rank matrices of an adapter (LoRA, Hu et al. 2021) beside a decoder's linear layers, active
//! on a run of rows: there a layer gives x·Wᵀ + scale · (x·Aᵀ)·Bᵀ in place of x·Wᵀ. Rows outside
//! the run are computed as without the matrices.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use tributary_kernels::{add, cast, join, linear};

use super::Config;
use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// A linear layer of a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Linear {
    /// The projection to queries.
    Query,
    /// The projection to keys.
    Key,
    /// The projection to values.
    Value,
    /// The output projection of attention.
    Output,
    /// The gate projection of the MLP.
    Gate,
    /// The up projection of the MLP.
    Up,
    /// The down projection of the MLP.
    Down,
}

impl Linear {
    /// The linear layers of a decoder layer.
    pub const ALL: [Linear; 7] =
        [Linear::Query, Linear::Key, Linear::Value, Linear::Output, Linear::Gate, Linear::Up, Linear::Down];

    /// Its name in Hugging Face's models, fused or not.
    pub fn name(self) -> &'static str {
        match self {
            Linear::Query => "q_proj",
            Linear::Key => "k_proj",
            Linear::Value => "v_proj",
            Linear::Output => "o_proj",
            Linear::Gate => "gate_proj",
            Linear::Up => "up_proj",
            Linear::Down => "down_proj",
        }
    }

    /// Shape (out, in) of its matrix in a model.
    pub fn shape(self, config: &Config) -> (usize, usize) {
        let Config { hidden, intermediate, heads, kv_heads, head_dim, .. } = *config;
        match self {
            Linear::Query => (heads * head_dim, hidden),
            Linear::Key | Linear::Value => (kv_heads * head_dim, hidden),
            Linear::Output => (hidden, heads * head_dim),
            Linear::Gate | Linear::Up => (intermediate, hidden),
            Linear::Down => (hidden, intermediate),
        }
    }
}

/// The low-rank matrices of one linear layer. They are on the model's device; on a GPU they have
/// the activations' dtype.
#[derive(Debug, Clone)]
pub struct LowRankPair {
    /// A, `[rank, in]`.
    pub a: Tensor,
    /// B, `[out, rank]`.
    pub b: Tensor,
    /// The factor of the product: α / rank.
    pub scale: f64,
}

/// The low-rank matrices of an adapter, by layer and linear layer. Gradients flow into them.
#[derive(Debug, Clone, Default)]
pub struct LowRank(BTreeMap<(usize, Linear), LowRankPair>);

impl LowRank {
    /// Matrices by their places. Linear layers without matrices stay unchanged.
    ///
    /// # Errors
    /// Returns [`Error::Input`] if the ranks of A and B differ.
    pub fn new(pairs: impl IntoIterator<Item = ((usize, Linear), LowRankPair)>) -> Result<Self> {
        let pairs: BTreeMap<_, _> = pairs.into_iter().collect();
        for ((layer, linear), LowRankPair { a, b, .. }) in &pairs {
            let (rank_a, rank_b) = (a.dims2()?.0, b.dims2()?.1);
            if rank_a != rank_b {
                let what =
                    format!("an adapter's matrices at {linear:?} of layer {layer} have ranks {rank_a} and {rank_b}");
                return Err(Error::Input(what));
            }
        }
        Ok(Self(pairs))
    }

    /// The matrices by their places.
    pub fn pairs(&self) -> impl Iterator<Item = (&(usize, Linear), &LowRankPair)> {
        self.0.iter()
    }
}

/// A run of rows on which low-rank matrices are active.
#[derive(Debug, Clone)]
pub(super) struct Adapted {
    range: Range<usize>,
    low_rank: Arc<LowRank>,
}

impl Adapted {
    pub(super) fn new(range: Range<usize>, low_rank: Arc<LowRank>) -> Self {
        Self { range, low_rank }
    }

    /// The part of the run among the rows `from..from + count`, counted from `from`.
    pub(super) fn within(&self, from: usize, count: usize) -> Option<Self> {
        let (start, end) = (self.range.start.max(from), self.range.end.min(from + count));
        (start < end).then(|| Self { range: start - from..end - from, low_rank: Arc::clone(&self.low_rank) })
    }

    /// The matrices of a linear layer, if there are any.
    pub(super) fn at(&self, layer: usize, linear: Linear) -> Option<Added<'_>> {
        let pair = self.low_rank.0.get(&(layer, linear))?;
        Some(Added { range: self.range.clone(), pair })
    }
}

/// The matrices of one linear layer, and the run of rows to which they apply.
pub(super) struct Added<'a> {
    range: Range<usize>,
    pair: &'a LowRankPair,
}

impl Added<'_> {
    /// `sum` `[rows, out]` with the product of the run's rows of `x` `[rows, in]` added to them.
    pub(super) fn onto(&self, sum: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (rows, from, count) = (sum.dim(0)?, self.range.start, self.range.len());
        assert!(self.range.end <= rows, "an adapter is active on the rows {:?} of {rows}", self.range);
        let LowRankPair { a, b, scale } = self.pair;
        let narrow = (linear(&x.narrow(0, from, count)?, a, None)? * *scale)?; // [count, rank]
        let more = cast(&linear(&narrow, b, None)?, sum.dtype())?;
        let parts = [
            sum.narrow(0, 0, from)?,
            add(&sum.narrow(0, from, count)?, &more)?,
            sum.narrow(0, self.range.end, rows - self.range.end)?,
        ];
        let filled: Vec<&Tensor> = parts.iter().filter(|part| part.dims()[0] > 0).collect();
        Ok(join(&filled, 0)?)
    }
}
