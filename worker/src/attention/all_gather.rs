//! Exact attention of a sequence split into contiguous runs: every layer's keys and values are
//! gathered on every rank, all heads at once or some at a time. One at a time is the weak baseline
//! of the literature.

use std::ops::Range;

use candle_core::Tensor;
use tributary_comm::{Communicator, Start};
use tributary_kernels::{Keys, Partial, Positions, contiguous};
use tributary_model::{Attention, Progress, Qkv, SlicedAttention, attend_whole};

use super::rounds::{last_of, start_all};
use super::slices::{Slices, even_parts};
use crate::context::Math;
use crate::error::{Error, Result};

/// Rows: this rank's run of the sequence.
pub struct AllGather<'a> {
    math: Math,
    /// Communicator with the other ranks.
    comm: &'a mut dyn Communicator,
    /// Positions of each rank's run.
    at: Vec<Positions>,
    /// Positions of this rank's rows that ask.
    asking: Positions,
    /// The rank that holds the prompt's last row.
    owner: usize,
    /// Number of KV heads gathered at a time; absent for all of them.
    heads_per_gather: Option<usize>,
    /// This rank's keys and values of every layer so far.
    layers: Vec<(Tensor, Tensor)>,
    /// The gathered keys of the current layer.
    keys: Vec<Keys>,
    slices: Slices,
}

impl<'a> AllGather<'a> {
    /// The pass over ranks whose runs have the positions `at`; the prompt's last row is on `owner`.
    pub fn new(math: Math, comm: &'a mut dyn Communicator, at: Vec<Positions>, owner: usize) -> Self {
        assert_eq!(at.len(), comm.size(), "ranks with a run");
        let (asking, slices) = (at[comm.rank()].clone(), Slices::default());
        let (layers, keys, heads_per_gather) = (Vec::new(), Vec::new(), None);
        Self { math, comm, at, asking, owner, heads_per_gather, layers, keys, slices }
    }

    /// The same; `heads` of the `kv_heads` KV heads are gathered at a time.
    #[must_use]
    pub fn gathering(self, heads: usize, kv_heads: usize) -> Self {
        Self { heads_per_gather: (heads < kv_heads).then_some(heads), ..self }
    }

    /// This rank's keys and values of every layer.
    pub fn into_layers(self) -> Vec<(Tensor, Tensor)> {
        self.layers
    }

    /// These keys and values of every rank.
    fn gather(&mut self, k: &Tensor, v: &Tensor) -> Result<Vec<Keys>> {
        let counts: Vec<usize> = self.at.iter().map(Positions::len).collect();
        let [sending_k, sending_v] = start_all(self.comm, [k, v].map(|send| Start::AllGather { send, rows: &counts }))?;
        let k = self.comm.wait(sending_k)?;
        let v = self.comm.wait(sending_v)?;
        assert_eq!(k.len(), self.at.len(), "ranks whose keys came");
        let key = |((k, v), at): ((Tensor, Tensor), &Positions)| Keys { k, v, at: at.clone() };
        Ok(k.into_iter().zip(v).zip(&self.at).map(key).collect())
    }

    /// Attention of all queries, some heads at a time.
    fn some_heads_at_a_time(&mut self, layer: usize, heads: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        let kv_heads = k.dim(1)?;
        let group = q.dim(1)? / kv_heads;
        let mut parts = Vec::new();
        for from in (0..kv_heads).step_by(heads) {
            let heads = heads.min(kv_heads - from);
            let (k, v) = (contiguous(&k.narrow(1, from, heads)?)?, contiguous(&v.narrow(1, from, heads)?)?);
            let q = contiguous(&q.narrow(1, from * group, heads * group)?)?;
            let keys = self.gather(&k, &v)?;
            let at = self.asking.clone();
            parts.push(self.slices.attend_onto(self.math.layer(layer), None, (&q, &at), &keys)?);
        }
        Ok(Partial::beside_each_other(&parts)?)
    }
}

impl Attention for AllGather<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        if let Some(heads) = self.heads_per_gather {
            self.layers.push((qkv.k.clone(), qkv.v.clone()));
            return self.some_heads_at_a_time(layer, heads, qkv);
        }
        attend_whole(self, layer, qkv)
    }

    fn in_slices(&mut self) -> Option<&mut dyn SlicedAttention<Error = Error>> {
        if self.heads_per_gather.is_some() { None } else { Some(self) }
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        let asked = usize::from(self.comm.rank() == self.owner);
        self.asking = last_of(&self.asking, asked);
        asked
    }
}

impl SlicedAttention for AllGather<'_> {
    type Error = Error;

    fn take(&mut self, _layer: usize, k: Tensor, v: Tensor) -> Result<()> {
        self.keys = self.gather(&k, &v)?;
        self.layers.push((k, v));
        Ok(())
    }

    fn parts(&mut self, rows: usize, parts: usize) -> Vec<Range<usize>> {
        assert_eq!(self.asking.len(), rows, "rows that ask");
        even_parts(self.math.row_keys, &self.asking, parts)
    }

    fn slice(&mut self, layer: usize, q: Tensor, rows: Range<usize>) -> Result<Partial> {
        self.slices.attend(self.math.layer(layer), (&q, rows), &self.asking, &self.keys)
    }

    fn end(&mut self, _layer: usize) -> Result<()> {
        self.keys.clear();
        Ok(())
    }
}
