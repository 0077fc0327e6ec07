//! A short pass of drawn tokens that gives the mean query of a layer: what rows of any text ask for
//! there, whatever they are. Queries lie in a narrow cone, so that their mean tells which keys get
//! attention.

use candle_core::{DType, Tensor};
use tributary_kernels::{Keys, Partial, Positions, cast, cuda};
use tributary_model::{Attention, Model, Progress, Qkv};
use tributary_protocol::{SplitMix64, TYPICAL_ROWS};

use crate::context::Math;
use crate::error::{Error, Result};

/// Rows: drawn tokens, one after the other.
pub struct TypicalRows {
    math: Math,
    at: Positions,
    /// Queries of the layer reached last, before RoPE.
    queries: Option<Tensor>,
}

impl TypicalRows {
    /// The mean query of a layer before RoPE, `[1, heads, head_dim]`, over tokens that are drawn
    /// from the vocabulary with the seed 0; `math` is of that model, for at least [`TYPICAL_ROWS`]
    /// positions. It is the same on every rank.
    ///
    /// # Errors
    /// Returns an error if a kernel fails.
    pub fn mean_query(model: &dyn Model, math: Math, layer: usize) -> Result<Tensor> {
        let (mut draw, vocab) = (SplitMix64::new(0), model.config().vocab);
        let ids: Vec<u32> = (0..TYPICAL_ROWS).map(|_| draw.below(vocab) as u32).collect();
        let mut this = Self { math, at: Positions::run(0, TYPICAL_ROWS), queries: None };
        model.up_to_attention(layer, model.embed(&ids)?, &mut this)?;
        let queries = this.queries.ok_or(Error::Bug("a pass reaches the layer that it runs up to"))?;
        let (rows, heads, head_dim) = queries.dims3()?;
        let numbers = cuda::download(&cast(&queries, DType::F32)?)?.flatten_all()?.to_vec1::<f32>()?;
        let mut mean = vec![0.0; heads * head_dim];
        for row in numbers.chunks_exact(mean.len()) {
            mean.iter_mut().zip(row).for_each(|(mean, number)| *mean += number / rows as f32);
        }
        Ok(cast(&Tensor::from_vec(mean, (1, heads, head_dim), queries.device())?, queries.dtype())?)
    }
}

impl Attention for TypicalRows {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let Qkv { q, k, v } = qkv;
        let keys = [Keys { k, v, at: self.at.clone() }];
        let partial = self.math.layer(layer).attend(&q, &self.at, &keys)?;
        self.queries = Some(q);
        Ok(partial)
    }
}
