//! Recompute under `pass-q`: cached keys stay on their ranks. Fresh keys and values go to the rank
//! of their chunk, and all rows' queries to all ranks; partial results return to the rows' home,
//! where they merge.
//!
//! The prefix and the query's own rows are added at home, once. With weights, the pass also
//! measures the attention of its rows (the second hop of `relay`).

use std::ops::Range;

use candle_core::Tensor;
use tributary_comm::Communicator;
use tributary_kernels::{Keys, Partial, Positions, Reduce, cast, cuda, merge};
use tributary_model::{Attention, Progress, Qkv};
use tributary_protocol::deal::Homes;

use super::delivery::Delivery;
use super::mix::Mix;
use super::placed::Placed;
use super::received::{Reader, received};
use super::rounds::{added, attend_apart, bring_home, join, last_of};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// Rows: any deal of context rows, and the query's on the owner if the pass has them.
pub struct PassQ<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    /// Number of each rank's queries.
    counts: Vec<usize>,
    /// Number of each rank's queries in the last layer, and their positions.
    last: (Vec<usize>, Positions),
    delivery: Delivery,
    /// Positions of all ranks' queries.
    at_all: Positions,
    /// Positions of this rank's queries.
    at: Positions,
    at_fresh: Positions,
    at_tail: Positions,
    prefix: View,
    stale: View,
    /// The query's rows among all ranks' rows, and their own view and positions of context rows, if
    /// these differ from the other rows'.
    reading: Option<(Range<usize>, View, Positions)>,
    fresh: Block,
    tail: Block,
    measure: Option<Measure>,
    mix: Option<Mix>,
}

/// Measurement of a pass's attention to context rows.
struct Measure {
    /// One weight for each row of the pass, rank by rank.
    weights: Vec<f32>,
    /// Sum over the layers, `[rows of stale, then of fresh]` f32; absent before the first.
    sums: Option<Tensor>,
    layers: usize,
}

impl<'a> PassQ<'a> {
    /// The pass of the rows of `homes` over the cache `placed`. `rank_of` gives the rank that keeps
    /// a context row.
    pub fn new(
        math: Math,
        comm: &'a mut dyn Communicator,
        homes: &Homes,
        placed: Placed<'_>,
        rank_of: &dyn Fn(u32) -> usize,
    ) -> Self {
        let Placed { cache, placement, hidden } = placed;
        let rank = comm.rank();
        let delivery = Delivery::new(rank, homes, rank_of);
        let fresh = Block::new(delivery.arriving());
        let tail = Block::new(homes.query_of(rank));
        Self {
            math,
            counts: homes.counts(),
            last: (homes.last_counts(), placement.at(homes.last())),
            delivery,
            at_all: placement.at(&homes.all()),
            at: placement.at(&homes.of(rank)),
            at_fresh: placement.at(fresh.rows()),
            at_tail: placement.at(tail.rows()),
            prefix: cache.view_of_prefix(placement),
            stale: cache.view_of_own(placement, hidden),
            comm,
            reading: None,
            fresh,
            tail,
            measure: None,
            mix: None,
        }
    }

    /// Makes the pass mix the fresh rows of this rank's chunks with the cached ones. `mix` gets the
    /// rows in the order of their arrival.
    #[must_use]
    pub fn mixing(mut self, mix: impl FnOnce(&[u32]) -> Option<Mix>) -> Self {
        self.mix = mix(self.fresh.rows());
        self
    }

    /// Makes the query's rows see context rows at the positions of `placed`, if it is given.
    #[must_use]
    pub fn reading(mut self, homes: &Homes, placed: Option<Placed<'_>>) -> Self {
        let of = |Placed { cache, placement, hidden }: Placed<'_>| {
            let before: usize = self.counts[..homes.owner].iter().sum();
            let start = before + homes.context[homes.owner].len();
            let rows = start..start + homes.query.len();
            (rows, cache.view_of_own(placement, hidden), placement.at(self.fresh.rows()))
        };
        self.reading = placed.map(of);
        self
    }

    /// Makes the pass measure the attention of its rows, each with its weight (rank by rank, as
    /// [`Homes::all`]).
    #[must_use]
    pub fn measuring(mut self, weights: Vec<f32>) -> Self {
        assert_eq!(weights.len(), self.at_all.len(), "weights of the rows of a pass");
        self.measure = Some(Measure { weights, sums: None, layers: 0 });
        self
    }

    /// The fresh rows of this rank's chunks, and the query's rows if this rank has them.
    pub fn into_blocks(self) -> (Block, Block) {
        (self.fresh, self.tail)
    }

    /// Context rows of this rank with their scores: the weighted attention of the pass, the mean
    /// over layers and heads.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn into_measured(self) -> Result<Vec<(u32, f32)>> {
        let Some(Measure { sums: Some(sums), layers, .. }) = self.measure else {
            return Ok(Vec::new());
        };
        let rows: Vec<u32> = self.stale.rows().chain(self.fresh.rows().iter().copied()).collect();
        let sums = cuda::download(&sums)?.to_vec1::<f32>()?;
        assert_eq!(sums.len(), rows.len(), "sums of stale and fresh rows");
        Ok(rows.into_iter().zip(sums).map(|(row, sum)| (row, sum / layers as f32)).collect())
    }

    /// Measures the attention of the rows to this rank's stale rows and to the `fresh` ones.
    fn measure(&mut self, layer: usize, all_q: &Tensor, fresh: Keys, lse: &Tensor) -> Result<()> {
        let Some(measure) = &mut self.measure else {
            return Ok(());
        };
        let lse = join(&self.comm.all_gather_v(lse, &self.counts)?)?;
        let by = Reduce::Weighted(&measure.weights);
        let scores = if self.stale.is_compressed() {
            let kv_heads = fresh.k.dim(1)?;
            let reader = Reader { math: self.math.layer(layer), q: all_q, at: &self.at_all, lse: &lse };
            let stale = received(reader, &self.stale, layer, kv_heads, by)?;
            match fresh.at.is_empty() {
                true => stale,
                false => join(&[stale, self.math.layer(layer).scores(all_q, &self.at_all, &[fresh], &lse, by)?])?,
            }
        } else {
            let keys = [self.stale.keys(layer), vec![fresh]].concat();
            self.math.layer(layer).scores(all_q, &self.at_all, &keys, &lse, by)?
        };
        measure.sums = Some(added(measure.sums.take(), scores)?);
        measure.layers += 1;
        Ok(())
    }
}

impl Attention for PassQ<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let Qkv { q, k, v } = qkv;
        let dtype = self.math.dtype;
        let queries = cast(&q, dtype)?;
        let (all_q, mut fresh_k, mut fresh_v) =
            self.delivery.deliver(self.comm, &self.counts, (&q, &queries), (&k, &v))?;
        if let Some(mix) = &self.mix {
            (fresh_k, fresh_v) = mix.of(layer, (fresh_k, fresh_v))?;
        }
        let tail_rows = self.tail.rows().len();
        assert!(tail_rows <= k.dim(0)?, "{tail_rows} query rows of {}", k.dim(0)?);
        let own_rows = k.dim(0)? - tail_rows;
        let (tail_k, tail_v) = (k.narrow(0, own_rows, tail_rows)?, v.narrow(0, own_rows, tail_rows)?);

        let mut keys = self.stale.keys(layer);
        keys.push(Keys { k: fresh_k.clone(), v: fresh_v.clone(), at: self.at_fresh.clone() });
        let apart = self.reading.as_ref().map(|(rows, stale, at)| {
            let fresh = Keys { k: fresh_k.clone(), v: fresh_v.clone(), at: at.clone() };
            (rows.clone(), [stale.keys(layer), vec![fresh]].concat())
        });
        let part = attend_apart(self.math.layer(layer), &all_q, &self.at_all, &keys, apart)?;
        let home = bring_home(self.comm, &part, &self.counts, dtype)?;
        let mut rest = self.prefix.keys(layer);
        rest.push(Keys { k: tail_k.clone(), v: tail_v.clone(), at: self.at_tail.clone() });
        let everything = merge(&home, &self.math.layer(layer).attend(&q, &self.at, &rest)?)?;
        if self.measure.is_some() {
            // An empty block has no keys in the view, so the scores still match its rows.
            let fresh = Keys { k: fresh_k.clone(), v: fresh_v.clone(), at: self.at_fresh.clone() };
            self.measure(layer, &all_q, fresh, &everything.lse)?;
        }
        self.fresh.layers.push((fresh_k, fresh_v));
        self.tail.layers.push((tail_k, tail_v));
        Ok(everything)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        let asked = self.tail.rows().len().min(1);
        (self.counts, self.at_all) = self.last.clone();
        // Only the prompt's last row asks.
        self.reading.iter_mut().for_each(|(rows, ..)| *rows = 0..1);
        self.at = last_of(&self.at, asked);
        asked
    }
}
