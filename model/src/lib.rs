//! A decoder: its config, weights and adapters, and a pass of rows through its layers.
//!
//! A model owns only weights: keys, positions and ranks belong to an [`Attention`]. The crate knows
//! no plan, no cache and no method. A model that reads pictures has a [`Tower`], which makes
//! features of their patches; rows of pictures start from these and carry levels ([`Visual`]).

mod adapter_folder;
mod adapters;
mod config;
mod decoder;
mod dummy;
mod dummy_packed;
mod eight_bits;
mod error;
mod expert_layer;
mod experts;
mod families;
mod fingerprint;
pub mod gguf;
#[cfg(test)]
mod kit;
mod layer_attention;
mod learnable;
mod low_rank;
mod mxfp4;
mod packed_bytes;
mod pass;
#[cfg(test)]
mod picture_kit;
mod picture_rows;
mod preprocessing;
mod progress;
mod quantised;
mod rope_config;
mod slices;
#[cfg(test)]
mod tests;
mod tower;
mod vision_config;
#[cfg(test)]
mod vision_tests;
mod visual;
mod weights;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Partial, gather};

pub use adapter_folder::{AdapterConfig, AdapterFolder, AdapterKind};
pub use adapters::{Adapter, Adapters, embed};
pub use config::Config;
pub use decoder::{Decoder, LoadFormat, load};
pub use eight_bits::in_eight_bits;
pub use error::{Error, Result};
pub use families::OutputNorms;
pub use fingerprint::{Fingerprint, fingerprint};
pub use layer_attention::LayerAttention;
pub use learnable::Learnable;
pub use low_rank::{Linear, LowRank, LowRankPair};
pub use packed_bytes::packed_bytes;
pub use picture_rows::with_pictures;
pub use preprocessing::Preprocessing;
pub use progress::{Interlude, Progress, interleaved};
pub use slices::{Filling, attend_whole, in_parts, slice_count, slice_of, slice_of_part};
pub use tower::{Features, Grid, Pictures, Tower};
pub use vision_config::{Marks, TowerConfig, VisionConfig};
pub use visual::{PictureRow, Visual};
pub use windows::Windows;

use self::low_rank::Adapted;

/// The residual stream of some rows.
#[derive(Debug, Clone)]
pub struct Rows {
    /// `[rows, hidden]`.
    pub hidden: Tensor,
    /// Run of rows on which an adapter's low-rank matrices are active, if there is one.
    adapted: Option<Adapted>,
    /// Those of the rows that are of pictures, if some are.
    visual: Option<Visual>,
    /// Present if a layer has computed the numbers; shared with copies and parts of these rows.
    /// With a single owner they may be overwritten.
    own: Option<Arc<()>>,
}

impl Rows {
    /// Rows without an adapter, `[rows, hidden]`.
    pub fn new(hidden: Tensor) -> Self {
        Self { hidden, adapted: None, visual: None, own: None }
    }

    /// The same rows, of which `visual` are of pictures: their levels are added after the first
    /// layers.
    ///
    /// # Panics
    /// If there are fewer rows: only a bug can cause that.
    #[must_use]
    pub fn with_visual(self, visual: Visual) -> Self {
        assert!(visual.end() <= self.len(), "{} rows, of pictures those up to {}", self.len(), visual.end());
        Self { visual: Some(visual), ..self }
    }

    /// The same rows, to which no levels of pictures are added.
    #[must_use]
    pub fn without_levels(self) -> Self {
        Self { visual: None, ..self }
    }

    /// The same with numbers that have just been computed: no other rows share them.
    fn fresh(hidden: Tensor) -> Self {
        Self::new(hidden.clone()).computed(hidden)
    }

    /// The same rows; an adapter's low-rank matrices are active on `range` of them from here on,
    /// and on no other.
    ///
    /// # Panics
    /// If there are fewer rows: only a bug can cause that.
    #[must_use]
    pub fn adapted(self, range: Range<usize>, low_rank: &Arc<LowRank>) -> Self {
        assert!(range.end <= self.len(), "an adapter is active on the rows {range:?} of {}", self.len());
        Self { adapted: Some(Adapted::new(range, Arc::clone(low_rank))), ..self }
    }

    /// The same rows with other numbers, `[rows, hidden]`.
    #[must_use]
    pub fn with(self, hidden: Tensor) -> Self {
        Self { hidden, own: None, ..self }
    }

    /// The same rows with numbers that a layer has just computed: no other rows share them.
    fn computed(self, hidden: Tensor) -> Self {
        Self { hidden, own: Some(Arc::default()), ..self }
    }

    /// Whether these rows alone own their numbers: there is no copy of them, and they are no part
    /// of other rows.
    fn are_own(&self) -> bool {
        self.own.as_ref().is_some_and(|own| Arc::strong_count(own) == 1)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.hidden.dims()[0]
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows at `places`, in that order; rows of pictures keep their levels.
    ///
    /// # Panics
    /// If an adapter is active on some of them: only a bug can cause that.
    ///
    /// # Errors
    /// Returns an error if a place is beyond the last row, or if a candle operation fails.
    pub fn select(&self, places: &[u32]) -> Result<Self> {
        assert!(self.adapted.is_none(), "rows with an adapter's matrices stay together");
        let visual = self.visual.as_ref().and_then(|visual| visual.select(places));
        Ok(Self { visual, ..Self::new(gather(&self.hidden, places)?) })
    }

    /// `count` rows from `from` on; an adapter stays active on those of its run that are among
    /// them, and rows of pictures keep their levels.
    ///
    /// # Errors
    /// Returns an error if there are fewer rows.
    pub fn run(&self, from: usize, count: usize) -> Result<Self> {
        let adapted = self.adapted.as_ref().and_then(|adapted| adapted.within(from, count));
        let visual = self.visual.as_ref().and_then(|visual| visual.within(from, count));
        Ok(Self { hidden: self.hidden.narrow(0, from, count)?, adapted, visual, own: self.own.clone() })
    }

    /// The last `count` rows; an adapter stays active on those of its run that are among them.
    ///
    /// # Errors
    /// Returns an error if there are fewer rows.
    pub fn last(&self, count: usize) -> Result<Self> {
        self.run(self.len().saturating_sub(count), count)
    }
}

/// Queries, keys and values of some rows in one layer, before RoPE.
#[derive(Debug, Clone)]
pub struct Qkv {
    /// `[queries, heads, head_dim]`: one for each row. In the last layer of a prompt only the last
    /// few rows may have a query ([`Attention::last_layer`]).
    pub q: Tensor,
    /// `[rows, kv_heads, kv_width]`, in the cache's dtype.
    pub k: Tensor,
    /// `[rows, kv_heads, kv_width]`, in the cache's dtype.
    pub v: Tensor,
}

/// A decoder. The two halves of a layer are separate, so that a pass can stop at the keys, drop
/// rows between keys and attention, or send keys while it continues.
pub trait Model: Send + Sync {
    /// Its shape.
    fn config(&self) -> &Config;

    /// The device that holds its weights, and with them every row's keys, values and residual.
    fn device(&self) -> &Device;

    /// The dtype of its weights, and of queries and outputs that travel.
    fn dtype(&self) -> DType;

    /// The dtype of its rows' keys and values: its own, or U8 where they are in 8 bits.
    fn kv_dtype(&self) -> DType {
        self.dtype()
    }

    /// Numbers, or bytes of 8 bits, of a head of keys or values.
    fn kv_width(&self) -> usize {
        self.config().head_dim
    }

    /// The attention of each layer, with rotary embeddings of at least `positions` positions.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    fn layer_attention(&self, positions: usize) -> Result<Arc<[LayerAttention]>>;

    /// Rows from token ids.
    ///
    /// # Errors
    /// Returns an error if an id is outside the vocabulary.
    fn embed(&self, ids: &[u32]) -> Result<Rows>;

    /// First half of a layer: keys and values of all rows, queries of the last `queries` rows,
    /// before RoPE.
    ///
    /// # Errors
    /// Returns an error if there are more queries than rows, or if a candle operation fails.
    fn qkv_of_last(&self, layer: usize, rows: &Rows, queries: usize) -> Result<Qkv>;

    /// Queries of all rows before RoPE, `[rows, heads, head_dim]`: those of
    /// [`qkv_of_last`](Self::qkv_of_last) alone.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    fn queries(&self, layer: usize, rows: &Rows) -> Result<Tensor>;

    /// The vision tower, if the model reads pictures.
    fn tower(&self) -> Option<&Tower> {
        None
    }

    /// Maximum number of rows that pass through a layer at a time, apart from attention that needs
    /// the queries of all rows: the memory of activations is that of a slice.
    fn slice_rows(&self) -> usize;

    /// Second half of a layer, given the attention of its rows to all that they see, `[rows,
    /// heads, head_dim]`. The layer's sinks are added here, if it has any, and at its end the
    /// layer's level to rows of pictures.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    fn finish(&self, layer: usize, rows: Rows, attended: Partial) -> Result<Rows>;

    /// Logits `[rows, vocab]`, f32.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    fn logits(&self, rows: &Rows) -> Result<Tensor>;
}

/// The one place where tokens attend to other tokens. Only an implementation knows positions.
pub trait Attention {
    /// The error of a call. A model's error converts into it, so that a pass has one error type.
    type Error: From<Error>;

    /// The attention of the queries of `qkv` in `layer` to all that they see, sinks left out:
    /// `[queries, heads, head_dim]`. The queries are those of the last rows; of all rows before
    /// [`last_layer`](Self::last_layer) is called.
    ///
    /// # Errors
    /// Returns an error if a kernel or the communicator fails.
    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial, Self::Error>;

    /// The record of the pass's steps.
    fn progress(&self) -> &Progress;

    /// The same attention for queries that come in slices, if it does not need all of them at once.
    /// Whether it is there is the same on all ranks.
    fn in_slices(&mut self) -> Option<&mut dyn SlicedAttention<Error = Self::Error>> {
        None
    }

    /// Announces the last layer of a prompt with `rows` rows on this rank, and returns the number
    /// of last rows that need an output. The next [`attend`](Self::attend) gets the queries of
    /// those and the keys of all rows. Every rank is called, so that an implementation may rely on
    /// the other ranks' counts.
    fn last_layer(&mut self, rows: usize) -> usize {
        rows
    }
}

/// An attention whose queries come in slices, so that only those of one slice are alive.
pub trait SlicedAttention {
    /// The error of a call.
    type Error;

    /// Takes keys and values of all rows in `layer`. Their queries follow, slice by slice.
    ///
    /// # Errors
    /// Returns an error if a kernel or the communicator fails.
    fn take(&mut self, layer: usize, k: Tensor, v: Tensor) -> Result<(), Self::Error>;

    /// Ranges of rows whose queries are needed before all slices, after
    /// [`take`](Self::take).
    fn ahead(&mut self) -> Vec<Range<usize>> {
        Vec::new()
    }

    /// Takes the queries of one of the ranges that [`ahead`](Self::ahead) names, in their order.
    /// They come in their slices too.
    ///
    /// # Errors
    /// Returns an error if a kernel or the communicator fails.
    fn take_ahead(&mut self, _layer: usize, _q: Tensor) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The rows of each of `parts` parts of a pass, of `rows` that ask: runs that follow each
    /// other. Ranks meet after each part, so that parts of equal work waste no time. An attention
    /// with [`common_rows`](Self::common_rows) keeps these.
    fn parts(&mut self, rows: usize, parts: usize) -> Vec<Range<usize>> {
        (0..parts).map(|part| part * rows / parts..(part + 1) * rows / parts).collect()
    }

    /// The attention `[rows, heads, head_dim]` of the queries `q` of the rows `rows`, a range of
    /// those that ask, to all that they see, sinks left out.
    ///
    /// # Errors
    /// Returns an error if a kernel or the communicator fails.
    fn slice(&mut self, layer: usize, q: Tensor, rows: Range<usize>) -> Result<Partial, Self::Error>;

    /// Ends the layer, after its slices.
    ///
    /// # Errors
    /// Returns an error if a kernel or the communicator fails.
    fn end(&mut self, layer: usize) -> Result<(), Self::Error>;

    /// The largest number of rows of any rank, if a slice communicates: then every rank makes the
    /// same number of slices of each part of the pass.
    fn common_rows(&mut self) -> Option<usize> {
        None
    }
}
