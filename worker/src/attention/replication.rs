//! Replication of stale context rows to all ranks, layer by layer. Started as soon as a layer's
//! rows are there, or, where all rows are there from the beginning, in slices behind a probe's own
//! messages; waited for when the recompute needs them: whatever comes between (later layers, the
//! query's probe) hides it.

use candle_core::Tensor;
use tributary_comm::{Communicator, Pending, Start};

use super::rounds::{join, start_all};
use crate::error::Result;
use crate::kv::Block;

/// Keys and values of every layer on their way to all ranks.
pub struct Replication {
    counts: Vec<usize>,
    started: Vec<[Pending; 2]>,
    held: Option<HeldRows>,
}

/// Rows that are there and have not all set out. Messages go one after the other, so what a probe
/// waits for would stand behind all of them if they set out at once; one slice goes behind each of
/// its messages, while the probe computes on.
struct HeldRows {
    /// This rank's context rows, and the prefix, which says how wide a row is where there are none.
    own: Vec<Block>,
    prefix: Block,
    /// How many slices there are, and how many have set out.
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
    /// The communicator's.
    pub fn start(&mut self, comm: &mut dyn Communicator, k: &Tensor, v: &Tensor) -> Result<()> {
        assert_eq!(self.counts.len(), comm.size(), "ranks that replicate");
        assert_eq!(k.dims()[0], self.counts[comm.rank()], "context rows of this rank");
        let pending = start_all(comm, [k, v].map(|send| Start::AllGather { send, rows: &self.counts }))?;
        self.started.push(pending);
        Ok(())
    }

    /// Holds all layers of this rank's `own` blocks back: they set out in `slices`
    /// ([`next_slice`](Self::next_slice)), as many on every rank, or, of no slices, at the
    /// [end](Self::finish). `prefix` has every layer too.
    pub fn hold(&mut self, own: Vec<Block>, prefix: Block, slices: usize) {
        assert!(self.started.is_empty(), "{} layers have set out", self.started.len());
        self.held = Some(HeldRows { own, prefix, slices, begun: 0 });
    }

    /// How many layers must be there when the next slices set out, given how many have been asked
    /// for since; none where nothing is held back.
    pub fn needs(&self) -> impl Fn(usize) -> usize + use<> {
        let held = self.held.as_ref().map(|held| (held.prefix.layers.len(), held.slices.max(1), held.begun));
        move |slices| held.map_or(0, |(layers, all, begun)| (layers * (begun + slices)).div_ceil(all).min(layers))
    }

    /// Starts the next slice of the layers that are held back; nothing if none is.
    ///
    /// # Errors
    /// The communicator's.
    pub fn next_slice(&mut self, comm: &mut dyn Communicator) -> Result<()> {
        let Some(held) = &mut self.held else { return Ok(()) };
        held.begun += 1;
        assert!(held.begun <= held.slices, "slice {} of {}", held.begun, held.slices);
        let until = held.prefix.layers.len() * held.begun / held.slices;
        self.start_until(comm, until)
    }

    /// Starts what is held back and waits for all layers; per rank and layer, keys and values of
    /// its context rows (none for this rank).
    ///
    /// # Errors
    /// The communicator's.
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

/// A rank's rows of a layer in one piece, of the blocks that it keeps; `prefix` says how wide a row
/// is where there are none.
///
/// # Errors
/// The tensor library's.
pub(super) fn kept_layer(own: &[Block], prefix: &Block, layer: usize) -> Result<(Tensor, Tensor)> {
    if own.is_empty() {
        let (k, v) = prefix.layer(layer);
        return Ok((k.narrow(0, 0, 0)?, v.narrow(0, 0, 0)?));
    }
    let (k, v): (Vec<_>, Vec<_>) = own.iter().map(|block| block.layer(layer).clone()).unzip();
    Ok((join(&k)?, join(&v)?))
}
