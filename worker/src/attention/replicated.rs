//! Recompute under `replicate`: every rank holds every stale key and value; in each layer, the
//! fresh ones of all ranks' rows are gathered while the rows attend to the keys already present.

use std::ops::Range;

use candle_core::Tensor;
use tributary_comm::{Communicator, Pending, Start};
use tributary_kernels::{Keys, Partial, Positions, merge};
use tributary_model::{Attention, Progress, Qkv, SlicedAttention, attend_whole};
use tributary_protocol::deal::Homes;

use super::mix::Mix;
use super::placed::Placed;
use super::rounds::{join, last_of, start_all};
use super::slices::{Slices, even_parts};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// Rows: this rank's share of the selected ones, and the query's on the owner.
pub struct Replicated<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    counts: Vec<usize>,
    /// Positions of this rank's rows that ask.
    at: Positions,
    at_fresh: Positions,
    at_tail: Positions,
    there: View,
    /// The query's own view and positions of context rows, if these differ from the other rows'.
    reading: Option<(View, Positions)>,
    fresh: Block,
    tail: Block,
    mix: Option<Mix>,
    /// Keys and values of the fresh rows in the current layer.
    fresh_now: Fresh,
    slices: Slices,
}

/// The fresh rows of a layer.
enum Fresh {
    /// Of all ranks, on their way.
    InFlight([Pending; 2]),
    /// Of all ranks.
    There(Tensor, Tensor),
    /// Before the first layer.
    None,
}

impl<'a> Replicated<'a> {
    /// The pass of the rows of `homes` over the cache `placed`.
    pub fn new(math: Math, comm: &'a mut dyn Communicator, homes: &Homes, placed: Placed<'_>) -> Self {
        let Placed { cache, placement, hidden } = placed;
        let rank = comm.rank();
        let fresh = Block::new(homes.all_context());
        let tail = Block::new(homes.query_of(rank));
        Self {
            math,
            counts: homes.context_counts(),
            at: placement.at(&homes.of(rank)),
            at_fresh: placement.at(fresh.rows()),
            at_tail: placement.at(tail.rows()),
            there: cache.view_of_stale(placement, hidden),
            comm,
            reading: None,
            fresh,
            tail,
            mix: None,
            fresh_now: Fresh::None,
            slices: Slices::default(),
        }
    }

    /// Makes the query's rows see context rows at the positions of `placed`, if it is given.
    #[must_use]
    pub fn reading(mut self, placed: Option<Placed<'_>>) -> Self {
        let of = |Placed { cache, placement, hidden }: Placed<'_>| {
            (cache.view_of_stale(placement, hidden), placement.at(self.fresh.rows()))
        };
        self.reading = placed.map(of);
        self
    }

    /// Makes the pass mix this rank's fresh context rows with the cached ones.
    #[must_use]
    pub fn mixing(mut self, mix: Option<Mix>) -> Self {
        self.mix = mix;
        self
    }

    /// All ranks' fresh rows, and the query's rows if this rank has them.
    pub fn into_blocks(self) -> (Block, Block) {
        (self.fresh, self.tail)
    }

    /// Whether no fresh row comes from another rank, so that one attention covers all keys.
    fn is_alone(&self) -> bool {
        self.counts.len() == 1
    }

    /// Waits for the fresh rows of a layer.
    fn arrived(&mut self) -> Result<(Tensor, Tensor)> {
        self.fresh_now = match std::mem::replace(&mut self.fresh_now, Fresh::None) {
            Fresh::InFlight([k, v]) => Fresh::There(join(&self.comm.wait(k)?)?, join(&self.comm.wait(v)?)?),
            there => there,
        };
        match &self.fresh_now {
            Fresh::There(k, v) => Ok((k.clone(), v.clone())),
            _ => Err(Error::Bug("fresh rows are there after their layer was taken")),
        }
    }

    /// Attention of the queries `q` of the rows `rows` to `keys`; the query's rows attend to
    /// `apart` in place of these, if it is given.
    fn look(
        &mut self,
        layer: usize,
        (q, rows): (&Tensor, Range<usize>),
        keys: &[Keys],
        apart: Option<&[Keys]>,
    ) -> Result<Partial> {
        let math = self.math.layer(layer);
        let Some(apart) = apart else { return self.slices.attend(math, (q, rows), &self.at, keys) };
        let first = self.at.len() - self.tail.rows().len().min(self.at.len());
        let cut = first.clamp(rows.start, rows.end);
        let mut parts = Vec::new();
        for (run, keys) in [(rows.start..cut, keys), (cut..rows.end, apart)] {
            if !run.is_empty() || rows.is_empty() {
                let q = q.narrow(0, run.start - rows.start, run.len())?;
                parts.push(self.slices.attend(math, (&q, run), &self.at, keys)?);
            }
        }
        Ok(Partial::below_each_other(&parts)?)
    }
}

impl Attention for Replicated<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        attend_whole(self, layer, qkv)
    }

    fn in_slices(&mut self) -> Option<&mut dyn SlicedAttention<Error = Error>> {
        Some(self)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        let asked = self.tail.rows().len().min(1);
        self.at = last_of(&self.at, asked);
        asked
    }
}

impl SlicedAttention for Replicated<'_> {
    type Error = Error;

    fn take(&mut self, layer: usize, k: Tensor, v: Tensor) -> Result<()> {
        let own = self.counts[self.comm.rank()];
        let cut =
            |x: &Tensor| -> Result<(Tensor, Tensor)> { Ok((x.narrow(0, 0, own)?, x.narrow(0, own, x.dim(0)? - own)?)) };
        let ((mut k, tail_k), (mut v, tail_v)) = (cut(&k)?, cut(&v)?);
        if let Some(mix) = &self.mix {
            (k, v) = mix.of(layer, (k, v))?;
        }
        self.tail.layers.push((tail_k, tail_v));
        self.fresh_now = if self.is_alone() || self.fresh.rows().is_empty() {
            Fresh::There(k, v)
        } else {
            let starts = [&k, &v].map(|send| Start::AllGather { send, rows: &self.counts });
            Fresh::InFlight(start_all(self.comm, starts)?)
        };
        Ok(())
    }

    fn parts(&mut self, rows: usize, parts: usize) -> Vec<Range<usize>> {
        assert_eq!(self.at.len(), rows, "rows that ask");
        even_parts(self.math.row_keys, &self.at, parts)
    }

    fn slice(&mut self, layer: usize, q: Tensor, rows: Range<usize>) -> Result<Partial> {
        let (tail_k, tail_v) = self.tail.layers.last().expect("the layer's keys were taken").clone();
        let tail = Keys { k: tail_k, v: tail_v, at: self.at_tail.clone() };
        let alone = if self.is_alone() { Some(self.arrived()?) } else { None };
        let fresh = |(k, v): &(Tensor, Tensor), at: &Positions| Keys { k: k.clone(), v: v.clone(), at: at.clone() };
        let beside = |at: &Positions| alone.iter().filter(|_| !at.is_empty()).map(|kv| fresh(kv, at)).collect();
        let there =
            |view: &View, at: &Positions| -> Vec<Keys> { [view.keys(layer), beside(at), vec![tail.clone()]].concat() };
        let keys = there(&self.there, &self.at_fresh);
        let apart = self.reading.as_ref().map(|(view, at)| there(view, at));
        let part = self.look(layer, (&q, rows.clone()), &keys, apart.as_deref())?;
        if self.is_alone() || self.fresh.rows().is_empty() {
            return Ok(part);
        }
        let arrived = self.arrived()?;
        let apart = self.reading.as_ref().map(|(_, at)| [fresh(&arrived, at)]);
        let keys = [fresh(&arrived, &self.at_fresh)];
        let found = self.look(layer, (&q, rows), &keys, apart.as_ref().map(<[Keys; 1]>::as_slice))?;
        Ok(merge(&part, &found)?)
    }

    fn end(&mut self, _layer: usize) -> Result<()> {
        let fresh = self.arrived()?;
        self.fresh.layers.push(fresh);
        self.fresh_now = Fresh::None;
        Ok(())
    }
}
