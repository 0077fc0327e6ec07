//! Facts of a model that methods read.

use crate::layer_set::LayerSet;
use crate::terms::Drift;

/// Facts of the model that methods read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// Number of layers.
    pub layers: usize,
    /// Number of KV heads in a layer.
    pub kv_heads: usize,
    /// Layers with a sliding window.
    pub windowed: LayerSet,
}

impl ModelFacts {
    /// Of a model without sliding windows.
    pub const fn new(layers: usize, kv_heads: usize) -> Self {
        Self { layers, kv_heads, windowed: LayerSet::EMPTY }
    }

    /// Drift in at least `layers` layers, and up to one after a layer without a sliding window:
    /// only rows near a chunk's begin see other chunks in a window.
    pub(crate) fn drift(self, layers: usize) -> Drift {
        let first = (0..self.layers).find(|&layer| !self.windowed.contains(layer)).unwrap_or(0);
        match first + 1 < self.layers {
            true => Drift { layers: layers.max(first + 1), blind: first, ..Drift::default() },
            false => Drift { layers, ..Drift::default() },
        }
    }
}
