//! The query's attention to the distributed cache. Its rows run on every rank, and a rank computes
//! their attention to its own context rows. Partials are gathered and merged in rank order, so that
//! the softmax is exact across ranks and every rank continues with the same bits. Prefix and query
//! rows are on every rank: they are merged in once, after the gather.

use std::ops::Range;

use candle_core::{DType, Tensor};
use tributary_comm::{Communicator, Start};
use tributary_kernels::{Keys, Partial, Positions, Reduce, cast, merge};
use tributary_model::{Attention, Progress, Qkv};
use tributary_protocol::{Evidence, Score};

use super::Replication;
use super::received::{Reader, received};
use super::rounds::{added, merge_all, start_all};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::View;

/// Rows: the query's. A probe runs up to the attention of the last scored layer.
pub struct QueryProbe<'a> {
    /// Kernels and constants.
    pub math: Math,
    /// Communicator with the other ranks.
    pub comm: &'a mut dyn Communicator,
    /// The evidence that is measured.
    pub evidence: Evidence,
    /// The scored layers; the score is the mean over them.
    pub layers: Range<usize>,
    /// The query's positions.
    pub at: Positions,
    /// Logarithm of what a row's attention is divided by, `[rows, heads]` f32; absent if all count
    /// alike.
    pub fading: Option<Tensor>,
    /// The prefix.
    pub prefix: View,
    /// Context rows of this rank alone.
    pub own: View,
    /// Stale rows held back: a slice of them is sent after the partials of each layer except the
    /// last.
    pub stale: Option<&'a mut Replication>,
    /// Sum over the scored layers so far, `[rows of own]` f32; absent before the first of them.
    pub sums: Option<Tensor>,
    /// The scores of each scored layer by itself, if requested.
    pub of_layers: Option<Vec<Tensor>>,
    /// The rows in the last scored layer, before RoPE, once it is computed.
    pub asked: Option<Qkv>,
}

impl<'a> QueryProbe<'a> {
    /// A probe by rows at `at`, of evidence in these layers, with the prefix and this rank's
    /// context rows in sight.
    pub fn new(
        math: Math,
        comm: &'a mut dyn Communicator,
        (evidence, layers): (Evidence, Range<usize>),
        at: Positions,
        (prefix, own): (View, View),
    ) -> Self {
        let (fading, stale, sums, of_layers, asked) = (None, None, None, None, None);
        Self { math, comm, evidence, layers, at, fading, prefix, own, stale, sums, of_layers, asked }
    }

    fn gather(&mut self, layer: usize, own: Partial, dtype: DType) -> Result<Partial> {
        let size = self.comm.size();
        if size == 1 {
            return Ok(own);
        }
        let counts = vec![self.at.len(); size];
        let wide = own.out.dtype();
        let out = cast(&own.out, dtype)?;
        let starts = [&out, &own.lse].map(|send| Start::AllGather { send, rows: &counts });
        let [out, lse] = start_all(self.comm, starts)?;
        // Before the wait: the slice is assembled while the partials are in flight. The slice is in
        // flight while the rest of the layer and the next one are computed. After the last layer
        // come the scores, which would have to wait for a slice.
        if let (Some(stale), true) = (&mut self.stale, layer + 1 < self.layers.end) {
            stale.next_slice(self.comm)?;
        }
        let out = self.comm.wait(out)?;
        let lse = self.comm.wait(lse)?;
        merge_all(out, lse, wide)
    }

    /// Whether a layer is scored: one of [`Math::scored`], or any if each layer has scores of its
    /// own.
    pub(super) fn scores(&self, layer: usize) -> bool {
        let is_apart = self.of_layers.is_some();
        self.layers.contains(&layer) && (is_apart || self.math.scored(&self.layers).contains(&layer))
    }

    /// The attention of the rows in a layer.
    pub(super) fn look(&mut self, layer: usize, qkv: Qkv) -> Result<Found> {
        let Qkv { q, k, v } = qkv;
        let own = self.math.layer(layer).attend(&q, &self.at, &self.own.keys(layer))?;
        let context = self.gather(layer, own, self.math.dtype)?;
        let mut rest = self.prefix.keys(layer);
        rest.push(Keys { k, v, at: self.at.clone() });
        let everything = merge(&context, &self.math.layer(layer).attend(&q, &self.at, &rest)?)?;
        Ok(Found { context_lse: context.lse, everything })
    }
}

/// The attention of the query's rows in a layer.
pub(super) struct Found {
    /// Log-sum-exp over the visible context rows of all ranks.
    context_lse: Tensor,
    /// Attention to all visible rows.
    pub everything: Partial,
}

impl Attention for QueryProbe<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let (q, kv_heads) = (qkv.q.clone(), qkv.k.dim(1)?);
        if layer + 1 == self.layers.end {
            self.asked = Some(qkv.clone());
        }
        let Found { context_lse, everything } = self.look(layer, qkv)?;
        if self.scores(layer) {
            let lse = if self.evidence.over_context { &context_lse } else { &everything.lse };
            let by = match self.evidence.score {
                Score::Norm => Reduce::Norm,
                Score::Mass => Reduce::Mass,
            };
            // Sinks come before the fading, which divides the whole of a row's attention.
            let (math, lse) = self.math.layer(layer).normalised(lse)?;
            let faded = self.fading.as_ref().map(|fading| added(Some(fading.clone()), (*lse).clone())).transpose()?;
            let reader = Reader { math, q: &q, at: &self.at, lse: faded.as_ref().unwrap_or(&lse) };
            let scores = received(reader, &self.own, layer, kv_heads, by)?;
            if let Some(of_layers) = &mut self.of_layers {
                of_layers.push(scores.clone());
            }
            self.sums = Some(added(self.sums.take(), scores)?);
        }
        Ok(everything)
    }
}
