//! Blocks of a sequence, each of which sees itself and the anchor, at their places in the sequence
//! (phase 1 of Star Attention, Acharya et al. 2024, section 2.1). A rank that does not keep the
//! anchor computes it for its blocks only, and drops it.

use std::ops::Range;

use candle_core::Tensor;
use tributary_kernels::{DeviceList, Keys, Partial, Positions, gather_list};
use tributary_model::{Attention, Progress, Qkv, SlicedAttention, attend_whole};

use super::rounds::last_of;
use super::slices::Slices;
use crate::context::Math;
use crate::error::{Error, Result};

/// Rows: the anchor's, then this rank's blocks'; a segment for each, the anchor's visible to all.
pub struct Anchored {
    math: Math,
    at: Positions,
    /// Positions of the rows that ask.
    asking: Positions,
    kept: KeptRows,
    /// Keys of the current layer.
    keys: Vec<Keys>,
    slices: Slices,
}

impl Anchored {
    /// A pass over rows at the positions `at`, which keeps the rows at the places `kept`.
    pub fn new(math: Math, at: Positions, kept: Vec<u32>) -> Self {
        let (asking, kept) = (at.clone(), KeptRows::new(kept));
        Self { math, at, asking, kept, keys: Vec::new(), slices: Slices::default() }
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

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        attend_whole(self, layer, qkv)
    }

    fn in_slices(&mut self) -> Option<&mut dyn SlicedAttention<Error = Error>> {
        Some(self)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        self.asking = last_of(&self.asking, 0);
        0
    }
}

impl SlicedAttention for Anchored {
    type Error = Error;

    fn take(&mut self, _layer: usize, k: Tensor, v: Tensor) -> Result<()> {
        self.kept.keep(&k, &v)?;
        self.keys = vec![Keys { k, v, at: self.at.clone() }];
        Ok(())
    }

    fn slice(&mut self, layer: usize, q: Tensor, rows: Range<usize>) -> Result<Partial> {
        self.slices.attend(self.math.layer(layer), (&q, rows), &self.asking, &self.keys)
    }

    fn end(&mut self, _layer: usize) -> Result<()> {
        self.keys.clear();
        Ok(())
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
