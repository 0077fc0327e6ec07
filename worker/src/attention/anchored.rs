//! Blocks of a sequence, each of which sees itself and the first block, at their places in the sequence (phase 1 of Star Attention,
//! Acharya et al. 2024, section 2.1). A rank that does not keep the first block computes it for its blocks to see, and keeps nothing of it.

use candle_core::Tensor;
use tributary_kernels::{DeviceList, Keys, Positions, gather_list};

use super::rounds::last_of;
use crate::context::Math;
use crate::error::Result;
use crate::model::{Attention, Qkv};
use crate::progress::Progress;

/// Rows: the first block, then this rank's others; a segment each, the first block's seen by all.
pub struct Anchored {
    math: Math,
    at: Positions,
    /// The rows to keep.
    kept: DeviceList,
    /// Keys and values of those in every layer so far.
    layers: Vec<(Tensor, Tensor)>,
}

impl Anchored {
    /// A pass whose rows stand at `at`, of which those from `first_kept` on are kept.
    pub fn new(math: Math, at: Positions, first_kept: usize) -> Self {
        let kept = (first_kept as u32..at.len() as u32).collect::<Vec<u32>>().into();
        Self { math, at, kept, layers: Vec::new() }
    }

    /// Keys and values of the kept rows, of every layer.
    pub fn into_layers(self) -> Vec<(Tensor, Tensor)> {
        self.layers
    }
}

impl Attention for Anchored {
    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, _layer: usize, qkv: Qkv) -> Result<Tensor> {
        let Qkv { q, k, v } = qkv;
        // A copy, where rows are dropped: a part of the tensors would keep the memory of all.
        let kept = |x: &Tensor| match self.kept.len() == self.at.len() {
            true => Ok(x.clone()),
            false => gather_list(x, &self.kept),
        };
        self.layers.push((kept(&k)?, kept(&v)?));
        let at = last_of(&self.at, q.dim(0)?);
        Ok(self.math.attend(&q, &at, &[Keys { k, v, at: self.at.clone() }])?.out)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        0
    }
}
