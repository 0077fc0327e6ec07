//! Control points: places in a prefill where every rank receives a common word to continue,
//! to cancel, or to halt for steps of decoding.
//!
//! A point follows each layer of every pass, blocks of a vision tower included. Every rank passes
//! the same points in the same order, even without a row or a picture in a pass.
//! Their number follows from the plan and, where free probes decide their own number of rounds,
//! from that number.

use crate::picture::packs;
use crate::{Drift, Evict, EvictionEvidence, Plan, Prefill, Slices};

/// The word that every rank receives at a control point, the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Word {
    /// Continue the request.
    Continue,
    /// Cancel the request.
    Cancel,
    /// Carry out other orders until [`Order::Resume`](crate::Order::Resume), then continue.
    Halt,
}

/// Rows of the prompt in one tile when they run once more through the filled cache.
pub const LOOK_TILE_ROWS: usize = 512;

/// Sizes of a model on which numbers of control points depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointShape {
    /// Layers of the model.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// The vision tower, if it has one.
    pub tower: Option<TowerPoints>,
}

/// Sizes of a vision tower on which numbers of control points depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TowerPoints {
    /// Blocks.
    pub blocks: usize,
    /// Patches of a picture's row.
    pub row_patches: usize,
}

impl Plan {
    /// Number of slices of a layer in a pass over the whole context in which no rank has more than
    /// `rows` rows.
    pub fn context_slices(&self, rows: usize) -> usize {
        Slices::count(self.slices.context_rows, rows)
    }

    /// Number of slices of a layer in the pass that prefills chunks on `world` ranks.
    pub fn chunk_slices(&self, world: usize) -> usize {
        if self.compresses() {
            // A layer is cut to its kept rows as a whole.
            return 1;
        }
        let mut rows = vec![self.prefix_tokens(); world];
        let cold = self.chunks.iter().filter(|chunk| self.prefills_chunks() && !chunk.warm);
        cold.for_each(|chunk| rows[chunk.rank] += chunk.rows());
        Slices::count(self.slices.chunk_rows, rows.into_iter().max().unwrap_or(0))
    }

    /// Number of control points of the pass that prefills the prefix, and chunks, before selection;
    /// 0 if all chunks are warm.
    pub fn chunk_points(&self, layers: usize) -> usize {
        if self.prefills_chunks() && self.chunks.iter().all(|chunk| chunk.warm) { 0 } else { layers }
    }

    /// Number of packs in which the rank with most packs runs its pictures, if a row has
    /// `row_patches` patches. Ranks with fewer packs, or with cached features, pass the same
    /// points.
    pub fn picture_packs(&self, row_patches: usize) -> usize {
        let pictures = self.pictures();
        let of = |rank| pictures.iter().filter(|(_, of)| *of == rank).map(|(picture, _)| *picture).collect::<Vec<_>>();
        let ranks: std::collections::BTreeSet<usize> = pictures.iter().map(|(_, rank)| *rank).collect();
        ranks.into_iter().map(|rank| packs(&of(rank), row_patches).len()).max().unwrap_or(0)
    }

    /// Number of control points of the vision phase.
    fn vision_points(&self, tower: Option<TowerPoints>) -> usize {
        tower.map_or(0, |TowerPoints { blocks, row_patches }| blocks * self.picture_packs(row_patches))
    }

    /// Number of control points of a prefill up to its first token, if its layers are whole;
    /// `rounds` is the number of free probes taken.
    pub fn points(&self, shape: PointShape, rounds: usize) -> usize {
        self.vision_points(shape.tower) + self.decoder_points(shape, rounds)
    }

    /// Those after the vision phase.
    fn decoder_points(&self, shape: PointShape, rounds: usize) -> usize {
        let layers = shape.layers;
        match self.method.prefill {
            Prefill::Whole { .. } | Prefill::Ring | Prefill::Gathered { .. } | Prefill::Queries => layers,
            // The blocks, then the query.
            Prefill::Anchored { .. } => 2 * layers,
            Prefill::Chunks(_) | Prefill::Selected(_) => {
                let reorder = if self.reorders() { self.probed_layers(layers).end } else { 0 };
                let evidence = if self.budget > 0 { self.evidence_points(shape, rounds) } else { 0 };
                self.chunk_points(layers) + reorder + evidence + layers
            }
        }
    }

    /// Number of control points of the measurements before rows are selected.
    fn evidence_points(&self, shape: PointShape, rounds: usize) -> usize {
        let layers = shape.layers;
        let candidates: usize = self.candidates(&self.request_order()).iter().map(|(_, tokens)| tokens).sum();
        if let Some(Drift { layers: measured, .. }) = self.drifts(&self.request_order()) {
            // The first layer, in which nothing is measured, comes before them.
            return measured + 1;
        }
        let oracle = if self.asks_oracle() { layers } else { 0 };
        let pass = if self.measured_rows().min(candidates) > 0 { layers } else { 0 };
        let chosen = self.traces().and_then(|trace| trace.heads.count(layers * shape.heads)).is_some();
        let traced = rounds * layers * if chosen { 2 } else { 1 };
        self.probed_layers(layers).end + oracle + pass + traced
    }

    /// Number of control points between the first token and the end of the prefill, if more tokens
    /// follow.
    /// They belong to rows that attend to the cache, and to tokens written to measure their
    /// attention. `recomputed` are the recomputed rows.
    pub fn points_after_first_token(&self, layers: usize, world: usize, recomputed: &[u32]) -> usize {
        let there = self.rows_there(recomputed);
        match self.evicts().filter(|evict| evict.keep < there.len()) {
            None => self.look_ahead.map_or(0, |_| layers),
            Some(evict) => layers * self.eviction_passes(evict, world, &there),
        }
    }

    /// Number of times that rows run through all layers to decide which rows are kept.
    fn eviction_passes(&self, evict: &Evict, world: usize, there: &[u32]) -> usize {
        let tiles = |rows: usize| rows.div_ceil(LOOK_TILE_ROWS);
        let window = tiles(evict.window_rows().min(there.len()));
        // Each written token but the first, and then all of them at once.
        let written = evict.pseudo.max(1);
        match evict.descriptor().evidence {
            EvictionEvidence::Places | EvictionEvidence::Draw => 0,
            EvictionEvidence::LookAhead | EvictionEvidence::DraftTokens | EvictionEvidence::LastRow => 1,
            EvictionEvidence::Window => window,
            EvictionEvidence::PseudoTokens => window + written,
            EvictionEvidence::OwnTokens => written,
            EvictionEvidence::AllRows => {
                let holders = self.holders(world);
                let held = |rank: usize| there.iter().filter(|&&row| holders[row as usize] == rank).count();
                (0..world).map(held).map(tiles).max().unwrap_or(0)
            }
        }
    }
}
