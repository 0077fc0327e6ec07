//! Prefill of this rank's chunks, packed in one batch behind the prefix: every chunk sees the prefix and itself. Under
//! `replicate` each layer's keys and values go to all ranks while the next layer is computed. Also the full prefill of one
//! rank, which is the same thing with other positions.

use candle_core::Tensor;
use tributary_comm::{Communicator, Pending};
use tributary_kernels::{Keys, Positions};

use super::rounds::last_of;
use crate::context::Math;
use crate::error::Result;
use crate::model::{Attention, Qkv};

/// Rows: the prefix, then this rank's chunks; or a whole prompt.
pub struct ChunkPrefill<'a> {
    /// Kernels and constants.
    pub math: Math,
    /// Where the rows stand: for chunks the LOCAL layout, one segment a chunk, the prefix shared.
    pub at: Positions,
    /// Rows whose output is needed after the last layer: the last one of a whole prompt; none of chunks, which stop at
    /// their keys.
    pub asked: usize,
    /// Keys and values of every layer so far.
    pub layers: Vec<(Tensor, Tensor)>,
    /// The gather under way, if keys and values are replicated.
    pub gather: Option<Gather<'a>>,
}

/// Replication of context rows to all ranks, one layer behind the computation.
pub struct Gather<'a> {
    comm: &'a mut dyn Communicator,
    prefix_rows: usize,
    counts: Vec<usize>,
    pending: Option<(Pending, Pending)>,
    /// Per rank, per layer: keys and values. This rank's own entry stays empty.
    received: Vec<Vec<(Tensor, Tensor)>>,
}

impl<'a> Gather<'a> {
    /// A gather of `counts[r]` context rows from rank r, which stand behind `prefix_rows` rows in its batch.
    pub fn new(comm: &'a mut dyn Communicator, prefix_rows: usize, counts: Vec<usize>) -> Self {
        let received = vec![Vec::new(); counts.len()];
        Self { comm, prefix_rows, counts, pending: None, received }
    }

    fn start(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let own = self.counts[self.comm.rank()];
        let k = self.comm.start_all_gather_v(&k.narrow(0, self.prefix_rows, own)?, &self.counts)?;
        let v = self.comm.start_all_gather_v(&v.narrow(0, self.prefix_rows, own)?, &self.counts)?;
        self.pending = Some((k, v));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some((k, v)) = self.pending.take() else {
            return Ok(());
        };
        let k = self.comm.wait(k)?;
        let v = self.comm.wait(v)?;
        let rank = self.comm.rank();
        for (from, pair) in k.into_iter().zip(v).enumerate() {
            if from != rank {
                self.received[from].push(pair);
            }
        }
        Ok(())
    }

    /// Waits for the last layer; per rank and layer, keys and values of its context rows (none for this rank).
    ///
    /// # Errors
    /// The communicator's.
    pub fn into_received(mut self) -> Result<Vec<Vec<(Tensor, Tensor)>>> {
        self.finish()?;
        Ok(self.received)
    }
}

impl Attention for ChunkPrefill<'_> {
    fn attend(&mut self, _layer: usize, qkv: Qkv) -> Result<Tensor> {
        if let Some(gather) = &mut self.gather {
            gather.finish()?;
            gather.start(&qkv.k, &qkv.v)?;
        }
        let keys = Keys { k: qkv.k.clone(), v: qkv.v.clone(), at: self.at.clone() };
        let at = last_of(&self.at, qkv.q.dim(0)?);
        let partial = self.math.attend(&qkv.q, &at, &[keys])?;
        self.layers.push((qkv.k, qkv.v));
        Ok(partial.out)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        self.asked
    }
}
