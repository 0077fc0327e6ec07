//! One pass of rows over existing keys and their own: the common part of full prefill, packed
//! chunks and a query after them. Gradients flow where the rows or the keys take one.

use std::sync::Arc;

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Partial, Positions};
use tributary_model::{Attention, LayerAttention, Model, Progress, Qkv, Result, Rows};

/// Keys and values of every layer, with their positions.
pub type Layers = Vec<Vec<Keys>>;

/// A pass.
pub struct Pass<'a> {
    of_layers: Arc<[LayerAttention]>,
    at: Positions,
    before: &'a Layers,
    asked: usize,
    progress: &'a Progress,
    /// Keys and values of the pass's rows, layer by layer.
    pub own: Vec<(Tensor, Tensor)>,
}

impl<'a> Pass<'a> {
    /// A pass of rows at `at` over the keys of `before`; it gives the output of the last `asked`
    /// rows.
    ///
    /// # Errors
    /// Returns an error if the rotary tables cannot be made.
    pub fn new(
        model: &dyn Model,
        at: Positions,
        before: &'a Layers,
        asked: usize,
        progress: &'a Progress,
    ) -> Result<Self> {
        let furthest = at.rope().iter().max().map_or(0, |&position| position as usize);
        let of_layers = model.layer_attention(furthest + 1)?;
        Ok(Self { of_layers, at, before, asked, progress, own: Vec::new() })
    }

    /// Runs rows up to the keys of the last layer, whose output is not needed.
    ///
    /// # Errors
    /// Returns an error if the model fails.
    pub fn run_to_keys(&mut self, model: &dyn Model, rows: Rows) -> Result<()> {
        let last = model.config().layers - 1;
        let rows = model.layers(0..last, rows, self)?;
        let qkv = model.qkv_of_last(last, &rows, 0)?;
        self.own.push((qkv.k, qkv.v));
        Ok(())
    }

    /// Its own keys at other positions, to be seen by a later pass.
    pub fn keys_at(&self, at: &Positions) -> Layers {
        let block = |(k, v): &(Tensor, Tensor)| vec![Keys { k: k.clone(), v: v.clone(), at: at.clone() }];
        self.own.iter().map(block).collect()
    }
}

impl Attention for Pass<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        self.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let mut keys = self.before.get(layer).cloned().unwrap_or_default();
        keys.push(Keys { k: qkv.k.clone(), v: qkv.v.clone(), at: self.at.clone() });
        let (rows, queries) = (self.at.len(), qkv.q.dim(0)?);
        let asking: Vec<u32> = ((rows - queries) as u32..rows as u32).collect();
        let at = if queries == rows { self.at.clone() } else { self.at.select(&asking) };
        let partial = self.of_layers[layer].attend(Kernels::Auto, &qkv.q, &at, &keys)?;
        self.own.push((qkv.k, qkv.v));
        Ok(partial)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        self.asked
    }
}

/// The keys of each layer, those of `first` before those of `second`.
pub fn one_behind_other(first: &Layers, second: Layers) -> Layers {
    let mut all = first.clone();
    all.resize(second.len().max(first.len()), Vec::new());
    all.iter_mut().zip(second).for_each(|(all, more)| all.extend(more));
    all
}
