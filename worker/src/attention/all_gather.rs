//! Exact attention of a sequence split into contiguous runs: every layer's keys and values are
//! gathered on every rank, all heads at once or some at a time. One at a time is the weak baseline
//! of the literature.

use candle_core::Tensor;
use tributary_comm::{Communicator, Start};
use tributary_kernels::{Keys, Positions, contiguous, join};
use tributary_model::{Attention, Progress, Qkv};

use super::rounds::{last_of, start_all};
use crate::context::Math;
use crate::error::{Error, Result};

/// Rows: this rank's run of the sequence.
pub struct AllGather<'a> {
    /// Kernels and constants.
    pub math: Math,
    /// Communicator with the other ranks.
    pub comm: &'a mut dyn Communicator,
    /// Positions of each rank's run.
    pub at: Vec<Positions>,
    /// The rank that holds the prompt's last row.
    pub owner: usize,
    /// Number of KV heads gathered at a time.
    pub heads_per_gather: usize,
    /// This rank's keys and values of every layer so far.
    pub layers: Vec<(Tensor, Tensor)>,
}

impl AllGather<'_> {
    fn some_heads(&mut self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let counts: Vec<usize> = self.at.iter().map(Positions::len).collect();
        let [sending_k, sending_v] = start_all(self.comm, [k, v].map(|send| Start::AllGather { send, rows: &counts }))?;
        let k = self.comm.wait(sending_k)?;
        let v = self.comm.wait(sending_v)?;
        assert_eq!(k.len(), self.at.len(), "ranks whose keys came");
        let key = |((k, v), at): ((Tensor, Tensor), &Positions)| Keys { k, v, at: at.clone() };
        let keys: Vec<Keys> = k.into_iter().zip(v).zip(&self.at).map(key).collect();
        let at = last_of(&self.at[self.comm.rank()], q.dim(0)?);
        Ok(self.math.attend_in_slices(q, &at, &keys)?.out)
    }
}

impl Attention for AllGather<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, _layer: usize, qkv: Qkv) -> Result<Tensor> {
        let Qkv { q, k, v } = qkv;
        self.layers.push((k.clone(), v.clone()));
        let kv_heads = k.dim(1)?;
        if self.heads_per_gather >= kv_heads {
            return self.some_heads(&q, &k, &v);
        }
        let group = q.dim(1)? / kv_heads;
        let mut parts = Vec::new();
        for from in (0..kv_heads).step_by(self.heads_per_gather) {
            let heads = self.heads_per_gather.min(kv_heads - from);
            let (k, v) = (contiguous(&k.narrow(1, from, heads)?)?, contiguous(&v.narrow(1, from, heads)?)?);
            let q = contiguous(&q.narrow(1, from * group, heads * group)?)?;
            parts.push(self.some_heads(&q, &k, &v)?);
        }
        Ok(join(&parts.iter().collect::<Vec<_>>(), 1)?)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        usize::from(self.comm.rank() == self.owner)
    }
}
