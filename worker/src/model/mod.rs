//! The decoder: owns weights and nothing else. What a row attends to is not its business but an [`Attention`]'s.

mod config;
mod decoder;
mod dummy;
mod rope_config;
mod weights;

use candle_core::Tensor;
use tributary_kernels::Rope;

pub use config::Config;
pub use decoder::{Decoder, LoadFormat, load};

use crate::error::Result;

/// The residual stream of some rows.
#[derive(Debug, Clone)]
pub struct Rows {
    /// `[rows, hidden]`.
    pub hidden: Tensor,
}

impl Rows {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.hidden.dims()[0]
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Queries, keys and values of some rows in one layer, before RoPE.
#[derive(Debug, Clone)]
pub struct Qkv {
    /// `[rows, heads, head_dim]`.
    pub q: Tensor,
    /// `[rows, kv_heads, head_dim]`, in the cache's dtype.
    pub k: Tensor,
    /// `[rows, kv_heads, head_dim]`, in the cache's dtype.
    pub v: Tensor,
}

/// A decoder. The two halves of a layer are separate, so that a pass can stop at the keys, drop rows between keys and
/// attention, or send keys while it goes on.
pub trait Model: Send + Sync {
    /// Its shape.
    fn config(&self) -> &Config;

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

    /// First half of a layer: queries, keys and values, before RoPE.
    ///
    /// # Errors
    /// The tensor library's.
    fn qkv(&self, layer: usize, rows: &Rows) -> Result<Qkv>;

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

    /// One layer.
    ///
    /// # Errors
    /// The attention's or the tensor library's.
    fn layer(&self, layer: usize, rows: Rows, attention: &mut dyn Attention) -> Result<Rows> {
        let qkv = self.qkv(layer, &rows)?;
        let attended = attention.attend(layer, qkv)?;
        self.finish(layer, rows, attended)
    }

    /// Layers `from..to`, one after the other.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    fn layers(&self, range: std::ops::Range<usize>, rows: Rows, attention: &mut dyn Attention) -> Result<Rows> {
        range.into_iter().try_fold(rows, |rows, layer| self.layer(layer, rows, attention))
    }
}

/// The one place where tokens look at other tokens. The answer knows the positions, and it alone.
pub trait Attention {
    /// What the rows of `qkv` attend to in `layer`: `[rows, heads, head_dim]`.
    ///
    /// # Errors
    /// Kernels' and communicators'.
    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor>;
}
