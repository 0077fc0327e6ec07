//! Replication of stale context rows to all ranks, layer by layer. A layer is sent as soon as its
//! rows are computed. If all rows are there from the beginning, they are sent in slices after a
//! probe's own messages. The recompute waits for them; the work before it (later layers, the
//! query's probe) hides the transfer.

use candle_core::Tensor;
use tributary_comm::{Communicator, Pending, Start};

use super::rounds::{join, start_all};
use crate::error::Result;
use crate::kv::Block;

/// Keys and values of every layer, in flight to all ranks.
pub struct Replication {
    counts: Vec<usize>,
    started: Vec<[Pending; 2]>,
    held: Option<HeldRows>,
}

/// Rows that are there but not all sent. Messages are sent one after the other, so that a probe's
/// messages would wait for all rows if these were sent at once. One slice follows each of the
/// probe's messages, while the probe computes on.
struct HeldRows {
    /// This rank's context rows, and the prefix, which gives the width of a row if there are none.
    own: Vec<Block>,
    prefix: Block,
    /// Number of slices; in `begun` the number of those sent.
    slices: usize,
    begun: usize,
}

impl Replication {
    /// A replication of `counts[r]` context rows from rank r.
    pub fn new(counts: Vec<usize>) -> Self {
        Self { counts, started: Vec::new(), held: None }
    }

    /// Starts the next layer: this rank's rows, `[counts[rank], kv_heads, head_dim]`. Every rank
    /// starts every layer, in order.
    ///
    /// # Errors
    /// Returns an error if the communicator fails.
    pub fn start(&mut self, comm: &mut dyn Communicator, k: &Tensor, v: &Tensor) -> Result<()> {
        assert_eq!(self.counts.len(), comm.size(), "ranks that replicate");
        assert_eq!(k.dims()[0], self.counts[comm.rank()], "context rows of this rank");
        let pending = start_all(comm, [k, v].map(|send| Start::AllGather { send, rows: &self.counts }))?;
        self.started.push(pending);
        Ok(())
    }

    /// Holds all layers of this rank's `own` blocks back. They are sent in `slices` slices
    /// ([`next_slice`](Self::next_slice)), the same number on every rank; with no slices, at the
    /// [end](Self::finish). `prefix` has every layer too.
    pub fn hold(&mut self, own: Vec<Block>, prefix: Block, slices: usize) {
        assert!(self.started.is_empty(), "{} layers have set out", self.started.len());
        self.held = Some(HeldRows { own, prefix, slices, begun: 0 });
    }

    /// Number of layers that must be loaded for the next slices, as a function of the number of
    /// slices; 0 if nothing is held back.
    pub fn needs(&self) -> impl Fn(usize) -> usize + use<> {
        let held = self.held.as_ref().map(|held| (held.prefix.layers.len(), held.slices.max(1), held.begun));
        move |slices| held.map_or(0, |(layers, all, begun)| (layers * (begun + slices)).div_ceil(all).min(layers))
    }

    /// Starts the next slice of the layers that are held back, if there are any.
    ///
    /// # Errors
    /// Returns an error if the communicator fails.
    pub fn next_slice(&mut self, comm: &mut dyn Communicator) -> Result<()> {
        let Some(held) = &mut self.held else { return Ok(()) };
        held.begun += 1;
        assert!(held.begun <= held.slices, "slice {} of {}", held.begun, held.slices);
        let until = held.prefix.layers.len() * held.begun / held.slices;
        self.start_until(comm, until)
    }

    /// Starts the layers that are held back and waits for all. Returns keys and values of the
    /// context rows per rank and layer (none for this rank).
    ///
    /// # Errors
    /// Returns an error if the communicator fails.
    pub fn finish(mut self, comm: &mut dyn Communicator) -> Result<Vec<Vec<(Tensor, Tensor)>>> {
        let all = self.held.as_ref().map_or(0, |held| held.prefix.layers.len());
        self.start_until(comm, all)?;
        let rank = comm.rank();
        let mut received = vec![Vec::new(); self.counts.len()];
        for [k, v] in self.started {
            let (k, v) = (comm.wait(k)?, comm.wait(v)?);
            for (from, pair) in k.into_iter().zip(v).enumerate().filter(|&(from, _)| from != rank) {
                received[from].push(pair);
            }
        }
        Ok(received)
    }

    /// Starts the layers that are held back before layer `until`.
    fn start_until(&mut self, comm: &mut dyn Communicator, until: usize) -> Result<()> {
        while self.started.len() < until {
            let Some(held) = &self.held else { return Ok(()) };
            let (k, v) = kept_layer(&held.own, &held.prefix, self.started.len())?;
            self.start(comm, &k, &v)?;
        }
        Ok(())
    }
}

/// A rank's rows of a layer in one piece, of the blocks that it keeps; without rows, `prefix` gives
/// the width of a row.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub(super) fn kept_layer(own: &[Block], prefix: &Block, layer: usize) -> Result<(Tensor, Tensor)> {
    if own.is_empty() {
        let (k, v) = prefix.layer(layer);
        return Ok((k.narrow(0, 0, 0)?, v.narrow(0, 0, 0)?));
    }
    let (k, v): (Vec<_>, Vec<_>) = own.iter().map(|block| block.layer(layer).clone()).unzip();
    Ok((join(&k)?, join(&v)?))
}
