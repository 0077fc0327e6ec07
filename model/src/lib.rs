//! A decoder: its config, weights and adapters, and a pass of rows through its layers.
//!
//! A model owns weights and nothing else: keys, positions and ranks are an [`Attention`]'s
//! business. Knows no plan, no cache and no method.

mod adapter_folder;
mod adapters;
mod config;
mod decoder;
mod dummy;
mod error;
mod families;
mod fingerprint;
#[cfg(test)]
mod kit;
mod learnable;
mod low_rank;
mod progress;
mod rope_config;
#[cfg(test)]
mod tests;
mod weights;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Rope, gather};

pub use adapter_folder::{AdapterConfig, AdapterFolder, AdapterKind};
pub use adapters::{Adapter, Adapters, embed};
pub use config::Config;
pub use decoder::{Decoder, LoadFormat, load};
pub use error::{Error, Result};
pub use fingerprint::{Fingerprint, fingerprint};
pub use learnable::Learnable;
pub use low_rank::{Linear, LowRank, LowRankPair};
pub use progress::Progress;

use self::low_rank::Adapted;

/// The residual stream of some rows.
#[derive(Debug, Clone)]
pub struct Rows {
    /// `[rows, hidden]`.
    pub hidden: Tensor,
    /// The run of rows on which an adapter's low-rank matrices are active, if there is one.
    adapted: Option<Adapted>,
    /// There where a layer has made the numbers, and shared with copies and parts of these rows:
    /// alone, they may be written over.
    own: Option<Arc<()>>,
}

impl Rows {
    /// Rows of the model as it is, `[rows, hidden]`.
    pub fn new(hidden: Tensor) -> Self {
        Self { hidden, adapted: None, own: None }
    }

    /// The same rows, on `range` of which (and no other) an adapter's low-rank matrices are active
    /// from here on.
    ///
    /// # Panics
    /// If there are fewer rows: only a bug can do that.
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

    /// The same rows with numbers that a layer has computed and that nobody else has.
    fn computed(self, hidden: Tensor) -> Self {
        Self { hidden, own: Some(Arc::default()), ..self }
    }

    /// Whether nobody else has these numbers: no copy of the rows, and no rows of which these are a
    /// part.
    fn are_own(&self) -> bool {
        self.own.as_ref().is_some_and(|own| Arc::strong_count(own) == 1)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.hidden.dims()[0]
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows in the places `places`, in that order.
    ///
    /// # Panics
    /// If an adapter is active on some of them: only a bug can do that.
    ///
    /// # Errors
    /// A place beyond the last row; the tensor library's.
    pub fn select(&self, places: &[u32]) -> Result<Self> {
        assert!(self.adapted.is_none(), "rows with an adapter's matrices stay together");
        Ok(Self::new(gather(&self.hidden, places)?))
    }

    /// The last `count` rows; an adapter stays active on those of its run that are among them.
    ///
    /// # Errors
    /// There are fewer.
    pub fn last(&self, count: usize) -> Result<Self> {
        let from = self.len().saturating_sub(count);
        let adapted = self.adapted.as_ref().and_then(|adapted| adapted.within(from, count));
        Ok(Self { hidden: self.hidden.narrow(0, from, count)?, adapted, own: self.own.clone() })
    }
}

/// Queries, keys and values of some rows in one layer, before RoPE.
#[derive(Debug, Clone)]
pub struct Qkv {
    /// `[queries, heads, head_dim]`: one a row, but in the last layer of a prompt, where only the
    /// last few rows may ask ([`Attention::last_layer`]).
    pub q: Tensor,
    /// `[rows, kv_heads, head_dim]`, in the cache's dtype.
    pub k: Tensor,
    /// `[rows, kv_heads, head_dim]`, in the cache's dtype.
    pub v: Tensor,
}

/// A decoder. The two halves of a layer are separate, so that a pass can stop at the keys, drop
/// rows between keys and attention, or send keys while it goes on.
pub trait Model: Send + Sync {
    /// Its shape.
    fn config(&self) -> &Config;

    /// The device that holds its weights, and with them every row's keys, values and residual.
    fn device(&self) -> &Device;

    /// The type of its rows' keys and values.
    fn dtype(&self) -> DType;

    /// Its rotary embedding, covering at least `positions` positions.
    ///
    /// # Errors
    /// The tensor library's.
    fn rope(&self, positions: usize) -> Result<Rope>;

    /// Softmax scale of its attention.
    fn scale(&self) -> f32;

    /// Rows from token ids.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    fn embed(&self, ids: &[u32]) -> Result<Rows>;

    /// First half of a layer: keys and values of all rows, queries of the last `queries` rows,
    /// before RoPE.
    ///
    /// # Errors
    /// More queries than rows; the tensor library's.
    fn qkv_of_last(&self, layer: usize, rows: &Rows, queries: usize) -> Result<Qkv>;

    /// Second half of a layer, given what the rows attended to, `[rows, heads, head_dim]`.
    ///
    /// # Errors
    /// The tensor library's.
    fn finish(&self, layer: usize, rows: Rows, attended: Tensor) -> Result<Rows>;

    /// Logits `[rows, vocab]`, f32.
    ///
    /// # Errors
    /// The tensor library's.
    fn logits(&self, rows: &Rows) -> Result<Tensor>;
}

/// Passes of rows through the layers. An attention fails with an error of its own, and a pass with
/// the same.
impl dyn Model + '_ {
    /// First half of a layer for all rows.
    ///
    /// # Errors
    /// The tensor library's.
    pub fn qkv(&self, layer: usize, rows: &Rows) -> Result<Qkv> {
        self.qkv_of_last(layer, rows, rows.len())
    }

    /// One layer.
    ///
    /// # Errors
    /// The attention's or the tensor library's.
    pub fn layer<E: From<Error>>(
        &self,
        layer: usize,
        rows: Rows,
        attention: &mut dyn Attention<Error = E>,
    ) -> Result<Rows, E> {
        let progress = attention.progress().clone();
        progress.layer(layer, || {
            let qkv = self.qkv(layer, &rows)?;
            let attended = attention.attend(layer, qkv)?;
            Ok(self.finish(layer, rows, attended)?)
        })
    }

    /// Layers `from..to`, one after the other.
    ///
    /// # Errors
    /// As `layer`.
    pub fn layers<E: From<Error>>(
        &self,
        range: Range<usize>,
        rows: Rows,
        attention: &mut dyn Attention<Error = E>,
    ) -> Result<Rows, E> {
        range.into_iter().try_fold(rows, |rows, layer| self.layer(layer, rows, attention))
    }

    /// Layers up to the attention of `last`, for what it measures: nobody asks for its output.
    ///
    /// # Errors
    /// As `layer`.
    pub fn up_to_attention<E: From<Error>>(
        &self,
        last: usize,
        rows: Rows,
        attention: &mut dyn Attention<Error = E>,
    ) -> Result<(), E> {
        let rows = self.layers(0..last, rows, attention)?;
        let progress = attention.progress().clone();
        progress.layer(last, || attention.attend(last, self.qkv(last, &rows)?).map(drop))
    }

    /// All layers of a prompt. Every row leaves its keys and values; of the last layer's output,
    /// only the rows that [`Attention::last_layer`] names are computed and given back.
    ///
    /// # Errors
    /// As `layer`.
    pub fn prompt<E: From<Error>>(&self, rows: Rows, attention: &mut dyn Attention<Error = E>) -> Result<Rows, E> {
        let last = self.config().layers - 1;
        let rows = self.layers(0..last, rows, attention)?;
        let progress = attention.progress().clone();
        progress.layer(last, || {
            let asked = attention.last_layer(rows.len());
            let qkv = self.qkv_of_last(last, &rows, asked)?;
            let attended = attention.attend(last, qkv)?;
            Ok(self.finish(last, rows.last(asked)?, attended)?)
        })
    }
}

/// The one place where tokens look at other tokens. The answer knows the positions, and it alone.
pub trait Attention {
    /// The error of a call. A model's error converts into it, so that a pass fails with one type.
    type Error: From<Error>;

    /// The attention output of the queries of `qkv` in `layer`: `[queries, heads, head_dim]`. The
    /// queries are those of the last rows, all rows' before [`last_layer`](Self::last_layer) was
    /// called.
    ///
    /// # Errors
    /// Kernels' and communicators'.
    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor, Self::Error>;

    /// The record to which the pass tells its steps.
    fn progress(&self) -> &Progress;

    /// Announces the last layer of a prompt, where `rows` rows stand on this rank: how many of the
    /// last of them need an output. The next [`attend`](Self::attend) gets the queries of those and
    /// the keys of all. Every rank is asked, so that an answer may count on what the other ranks
    /// ask for.
    fn last_layer(&mut self, rows: usize) -> usize {
        rows
    }
}
