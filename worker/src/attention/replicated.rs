//! Recompute under `replicate`: every rank holds every stale key and value; in each layer, the
//! fresh ones of all ranks' rows are gathered while the rows attend to the keys already present.

use candle_core::Tensor;
use tributary_comm::{Communicator, Start};
use tributary_kernels::{Keys, Positions, merge};
use tributary_model::{Attention, Progress, Qkv};
use tributary_protocol::deal::Homes;

use super::mix::Mix;
use super::placed::Placed;
use super::rounds::{attend_apart, join, last_of, start_all};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// Rows: this rank's share of the selected ones, and the query's on the owner.
pub struct Replicated<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    counts: Vec<usize>,
    at: Positions,
    at_fresh: Positions,
    at_tail: Positions,
    there: View,
    /// The query's own view and positions of context rows, if these differ from the other rows'.
    reading: Option<(View, Positions)>,
    fresh: Block,
    tail: Block,
    mix: Option<Mix>,
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
}

impl Attention for Replicated<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor> {
        let Qkv { q, k, v } = qkv;
        let own = self.counts[self.comm.rank()];
        let at = last_of(&self.at, q.dim(0)?);
        let cut =
            |x: &Tensor| -> Result<(Tensor, Tensor)> { Ok((x.narrow(0, 0, own)?, x.narrow(0, own, x.dim(0)? - own)?)) };
        let ((mut fresh_k, tail_k), (mut fresh_v, tail_v)) = (cut(&k)?, cut(&v)?);
        if let Some(mix) = &self.mix {
            (fresh_k, fresh_v) = mix.of(layer, (fresh_k, fresh_v))?;
        }
        let asked = q.dim(0)? - self.tail.rows().len().min(q.dim(0)?)..q.dim(0)?;
        let tail = Keys { k: tail_k.clone(), v: tail_v.clone(), at: self.at_tail.clone() };
        // If nothing is in flight, one attention covers all keys.
        let is_alone = self.counts.len() == 1;
        let beside = |at: &Positions| match is_alone && !at.is_empty() {
            true => vec![Keys { k: fresh_k.clone(), v: fresh_v.clone(), at: at.clone() }],
            false => Vec::new(),
        };
        let with_tail = |view: &View, at: &Positions| [view.keys(layer), beside(at), vec![tail.clone()]].concat();
        let there = with_tail(&self.there, &self.at_fresh);
        let there_apart = self.reading.as_ref().map(|(view, at)| (asked.clone(), with_tail(view, at)));
        self.tail.layers.push((tail_k, tail_v));
        if is_alone || self.fresh.rows().is_empty() {
            self.fresh.layers.push((fresh_k, fresh_v));
            return Ok(attend_apart(&self.math, &q, &at, &there, there_apart)?.out);
        }
        let starts = [&fresh_k, &fresh_v].map(|send| Start::AllGather { send, rows: &self.counts });
        let [sending_k, sending_v] = start_all(self.comm, starts)?;
        let part = attend_apart(&self.math, &q, &at, &there, there_apart)?;
        let k = join(&self.comm.wait(sending_k)?)?;
        let v = join(&self.comm.wait(sending_v)?)?;
        let fresh = |at: &Positions| vec![Keys { k: k.clone(), v: v.clone(), at: at.clone() }];
        let apart = self.reading.as_ref().map(|(_, at)| (asked, fresh(at)));
        let part = merge(&part, &attend_apart(&self.math, &q, &at, &fresh(&self.at_fresh), apart)?)?;
        self.fresh.layers.push((k, v));
        Ok(part.out)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        self.tail.rows().len().min(1)
    }
}
