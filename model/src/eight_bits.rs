//! A model whose rows keep their keys and values in 8 bits.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Partial, SCALE_BYTES, to_eight_bits};

use crate::config::Config;
use crate::error::Result;
use crate::layer_attention::LayerAttention;
use crate::{Model, Qkv, Rows, Tower};

/// Another model with its keys and values in 8 bits. They are rounded once, where they are
/// computed: what is cached, stored, sent or cut later has the same numbers as what the pass that
/// computed them attends to.
struct InEightBits(Arc<dyn Model>);

/// The model with keys and values in 8 bits ([`to_eight_bits`]).
pub fn in_eight_bits(model: Arc<dyn Model>) -> Arc<dyn Model> {
    Arc::new(InEightBits(model))
}

impl Model for InEightBits {
    fn config(&self) -> &Config {
        self.0.config()
    }

    fn device(&self) -> &Device {
        self.0.device()
    }

    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn kv_dtype(&self) -> DType {
        DType::U8
    }

    fn kv_width(&self) -> usize {
        self.0.kv_width() + SCALE_BYTES
    }

    fn tower(&self) -> Option<&Tower> {
        self.0.tower()
    }

    fn layer_attention(&self, positions: usize) -> Result<Arc<[LayerAttention]>> {
        self.0.layer_attention(positions)
    }

    fn embed(&self, ids: &[u32]) -> Result<Rows> {
        self.0.embed(ids)
    }

    fn qkv_of_last(&self, layer: usize, rows: &Rows, queries: usize) -> Result<Qkv> {
        let Qkv { q, k, v } = self.0.qkv_of_last(layer, rows, queries)?;
        Ok(Qkv { q, k: to_eight_bits(&k)?, v: to_eight_bits(&v)? })
    }

    fn queries(&self, layer: usize, rows: &Rows) -> Result<Tensor> {
        self.0.queries(layer, rows)
    }

    fn slice_rows(&self) -> usize {
        self.0.slice_rows()
    }

    fn finish(&self, layer: usize, rows: Rows, attended: Partial) -> Result<Rows> {
        self.0.finish(layer, rows, attended)
    }

    fn logits(&self, rows: &Rows) -> Result<Tensor> {
        self.0.logits(rows)
    }
}
