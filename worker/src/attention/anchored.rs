//! Blocks of a sequence, each of which sees itself and the anchor, at their places in the sequence
//! (phase 1 of Star Attention, Acharya et al. 2024, section 2.1). A rank that does not keep the
//! anchor computes it for its blocks only, and drops it.

use candle_core::Tensor;
use tributary_kernels::{DeviceList, Keys, Positions, gather_list};
use tributary_model::{Attention, Progress, Qkv};

use super::rounds::last_of;
use crate::context::Math;
use crate::error::{Error, Result};

/// Rows: the anchor's, then this rank's blocks'; a segment for each, the anchor's visible to all.
pub struct Anchored {
    math: Math,
    at: Positions,
    kept: KeptRows,
}

impl Anchored {
    /// A pass over rows at the positions `at`, which keeps the rows at the places `kept`.
    pub fn new(math: Math, at: Positions, kept: Vec<u32>) -> Self {
        Self { math, at, kept: KeptRows::new(kept) }
    }

    /// Keys and values of the kept rows, of every layer.
    pub fn into_layers(self) -> Vec<(Tensor, Tensor)> {
        self.kept.layers
    }
}

impl Attention for Anchored {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, _layer: usize, qkv: Qkv) -> Result<Tensor> {
        let Qkv { q, k, v } = qkv;
        self.kept.keep(&k, &v)?;
        let at = last_of(&self.at, q.dim(0)?);
        Ok(self.math.attend(&q, &at, &[Keys { k, v, at: self.at.clone() }])?.out)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        0
    }
}

/// The kept rows of a pass that drops others.
pub(super) struct KeptRows {
    /// The kept rows, by their places in the pass.
    rows: DeviceList,
    /// Keys and values of the kept rows in every layer so far.
    pub layers: Vec<(Tensor, Tensor)>,
}

impl KeptRows {
    pub fn new(rows: Vec<u32>) -> Self {
        Self { rows: rows.into(), layers: Vec::new() }
    }

    /// Keeps the rows of a layer. If rows are dropped it copies, since a part of a tensor keeps the
    /// memory of the whole.
    pub fn keep(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let all = self.rows.len() == k.dim(0)?;
        let kept = |x: &Tensor| if all { Ok(x.clone()) } else { gather_list(x, &self.rows) };
        self.layers.push((kept(k)?, kept(v)?));
        Ok(())
    }
}
