//! The attention of a layer, apart from its matrices: rotary embedding, softmax scale, window and
//! sinks. Families with windows have layers of two kinds.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use tributary_kernels::{Kernels, Keys, Partial, Positions, Query, Rope};

use crate::error::Result;

/// What attention needs to know of a layer.
#[derive(Debug, Clone)]
pub struct LayerAttention {
    /// Its rotary embedding.
    pub rope: Rope,
    /// Its softmax scale.
    pub scale: f32,
    /// Positions that a row sees at most, its own included: a sliding window.
    pub window: Option<u32>,
    /// A learned sink of each query head, if there are any: the logit of one more key, whose value
    /// is 0 (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.2). The model adds it
    /// after all keys ([`Model::finish`](crate::Model::finish)), so that it counts once however
    /// the keys are spread over ranks.
    pub sinks: Option<Arc<[f32]>>,
    /// The type to which keys and values in 8 bits are unpacked: the model's.
    pub dtype: DType,
}

impl LayerAttention {
    /// The attention of all layers with rotations of more places, after those that are there
    /// ([`Rope::composed`]). The layers share one table.
    ///
    /// # Errors
    /// Returns an error if the model's rows stand on one axis.
    pub fn composed(layers: &[Self], places: &[[u32; 3]]) -> Result<Arc<[Self]>> {
        let Some(first) = layers.first() else { return Ok(Arc::default()) };
        let rope = first.rope.composed(places)?;
        Ok(layers.iter().map(|layer| Self { rope: rope.clone(), ..layer.clone() }).collect())
    }

    /// The same with its softmax scale divided by `temperature`.
    #[must_use]
    pub fn tempered(&self, temperature: f32) -> Self {
        Self { scale: self.scale / temperature, ..self.clone() }
    }

    /// Queries at these positions, as they see keys in this layer.
    pub fn seen_from(&self, at: &Positions) -> Positions {
        at.within(self.window)
    }

    /// The lowest position that a query at position `from` sees, if the layer has a window.
    pub fn lowest_seen(&self, from: u32) -> Option<u32> {
        self.window.map(|window| (from + 1).saturating_sub(window))
    }

    /// A call of queries with their growth ([`Rope::grown`]) and keys, both before RoPE. `at` comes
    /// from [`seen_from`](Self::seen_from).
    pub fn query<'a>(&'a self, q: &'a Tensor, at: &'a Positions, keys: &'a [Keys]) -> Query<'a> {
        Query { q, at, keys, rope: Some(&self.rope), scale: self.scale, dtype: self.dtype }
    }

    /// Attention of queries to keys, both before RoPE; the sinks are not among them.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if a position is beyond the tables.
    pub fn attend(&self, kernels: Kernels, q: &Tensor, at: &Positions, keys: &[Keys]) -> Result<Partial> {
        let at = self.seen_from(at);
        Ok(kernels.attend(&self.query(&self.rope.grown(q, &at)?, &at, keys))?)
    }
}
