//! Replication of stale context rows to all ranks, layer by layer. Started as soon as a layer's rows are there, waited for when
//! the recompute needs them: whatever comes between (later layers, the query's probe) hides it.

use candle_core::Tensor;
use tributary_comm::{Communicator, Pending, Start};

use super::rounds::start_all;
use crate::error::Result;

/// Keys and values of every layer on their way to all ranks.
pub struct Replication {
    counts: Vec<usize>,
    started: Vec<(Pending, Pending)>,
}

impl Replication {
    /// Of `counts[r]` context rows from rank r.
    pub fn new(counts: Vec<usize>) -> Self {
        Self { counts, started: Vec::new() }
    }

    /// Starts the next layer: this rank's rows, `[counts[rank], kv_heads, head_dim]`. Every rank starts every layer, in order.
    ///
    /// # Errors
    /// The communicator's.
    pub fn start(&mut self, comm: &mut dyn Communicator, k: &Tensor, v: &Tensor) -> Result<()> {
        assert_eq!(self.counts.len(), comm.size(), "ranks that replicate");
        assert_eq!(k.dims()[0], self.counts[comm.rank()], "context rows of this rank");
        let [k, v] = start_all(comm, [k, v].map(|send| Start::AllGather { send, rows: &self.counts }))?;
        self.started.push((k, v));
        Ok(())
    }

    /// Waits for all layers; per rank and layer, keys and values of its context rows (none for this rank).
    ///
    /// # Errors
    /// The communicator's.
    pub fn finish(self, comm: &mut dyn Communicator) -> Result<Vec<Vec<(Tensor, Tensor)>>> {
        let rank = comm.rank();
        let mut received = vec![Vec::new(); self.counts.len()];
        for (k, v) in self.started {
            let (k, v) = (comm.wait(k)?, comm.wait(v)?);
            for (from, pair) in k.into_iter().zip(v).enumerate().filter(|&(from, _)| from != rank) {
                received[from].push(pair);
            }
        }
        Ok(received)
    }
}
