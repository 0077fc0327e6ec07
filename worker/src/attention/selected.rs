//! Recompute under `selected`: a row stays with its chunk's rank and sees that rank's context plus
//! the other ranks' fresh rows; only fresh keys and values move. Not exact: the communication
//! floor. The query's rows go to the keys and return, as under `pass-q`.

use candle_core::{DType, Tensor};
use tributary_comm::{Communicator, Start};
use tributary_kernels::{Keys, Partial, Positions, cast, merge};
use tributary_model::{Attention, Progress, Qkv};
use tributary_protocol::deal::Homes;

use super::mix::Mix;
use super::placed::Placed;
use super::rounds::{all_queries, bring_home, last_of, split, start_all};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// Rows: the selected ones of this rank's chunks, and the query's on the owner.
pub struct SelectedOnly<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    /// Number of each rank's context rows.
    counts: Vec<usize>,
    /// Number of this rank's context rows that ask.
    own_asked: usize,
    /// Number of each rank's query rows that ask.
    query_asked: Vec<usize>,
    /// The same in the last layer.
    last_asked: Vec<usize>,
    at_fresh: Vec<Positions>,
    /// Positions of the query rows that ask.
    at_query: Positions,
    at_tail: Positions,
    prefix: View,
    stale: View,
    /// The query's own view and positions of this rank's context rows, if these differ from the
    /// other rows'.
    reading: Option<(View, Positions)>,
    fresh: Block,
    tail: Block,
    mix: Option<Mix>,
}

impl<'a> SelectedOnly<'a> {
    /// The pass of the rows of `homes` over the cache `placed`.
    pub fn new(math: Math, comm: &'a mut dyn Communicator, homes: &Homes, placed: Placed<'_>) -> Self {
        let Placed { cache, placement, hidden } = placed;
        let rank = comm.rank();
        let own = homes.context[rank].clone();
        let tail = Block::new(homes.query_of(rank));
        Self {
            math,
            counts: homes.context_counts(),
            own_asked: own.len(),
            query_asked: homes.query_counts(),
            last_asked: homes.last_counts(),
            at_fresh: homes.context.iter().map(|rows| placement.at(rows)).collect(),
            at_query: placement.at(&homes.query),
            at_tail: placement.at(tail.rows()),
            prefix: cache.view_of_prefix(placement),
            stale: cache.view_of_own(placement, hidden),
            comm,
            reading: None,
            fresh: Block::new(own),
            tail,
            mix: None,
        }
    }

    /// Makes the pass mix this rank's fresh context rows with the cached ones.
    #[must_use]
    pub fn mixing(mut self, mix: Option<Mix>) -> Self {
        self.mix = mix;
        self
    }

    /// Makes the query's rows see context rows at the positions of `placed`, if it is given.
    #[must_use]
    pub fn reading(mut self, placed: Option<Placed<'_>>) -> Self {
        let of = |Placed { cache, placement, hidden }: Placed<'_>| {
            (cache.view_of_own(placement, hidden), placement.at(self.fresh.rows()))
        };
        self.reading = placed.map(of);
        self
    }

    /// This rank's fresh rows, and the query's rows if this rank has them.
    pub fn into_blocks(self) -> (Block, Block) {
        (self.fresh, self.tail)
    }

    /// Attention of the query's rows to all keys, on the owner; no rows on other ranks.
    fn query(&mut self, layer: usize, all_q: &Tensor, tail: Keys, own_fresh: Keys, dtype: DType) -> Result<Partial> {
        let own = match &self.reading {
            Some((stale, at_fresh)) => [stale.keys(layer), vec![Keys { at: at_fresh.clone(), ..own_fresh }]].concat(),
            None => [self.stale.keys(layer), vec![own_fresh]].concat(),
        };

        let part = self.math.layer(layer).attend(all_q, &self.at_query, &own)?;
        let home = bring_home(self.comm, &part, &self.query_asked, dtype)?;
        let count = self.query_asked[self.comm.rank()];
        if count == 0 {
            return Ok(home);
        }
        let mut rest = self.prefix.keys(layer);
        rest.push(tail);
        let rest: Partial = self.math.layer(layer).attend(all_q, &self.at_query, &rest)?;
        Ok(merge(&home, &rest)?)
    }
}

impl Attention for SelectedOnly<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let Qkv { q, k, v } = qkv;
        let (rank, dtype) = (self.comm.rank(), self.math.dtype);
        let [q_own, q_query] = pair(split(&q, &[self.own_asked, self.query_asked[rank]])?);
        let cuts = [self.counts[rank], self.tail.rows().len()];
        let [mut k_own, k_tail] = pair(split(&k, &cuts)?);
        let [mut v_own, v_tail] = pair(split(&v, &cuts)?);
        if let Some(mix) = &self.mix {
            (k_own, v_own) = mix.of(layer, (k_own, v_own))?;
        }
        let queries = cast(&q_query, dtype)?;
        let starts = [
            Start::AllGather { send: &k_own, rows: &self.counts },
            Start::AllGather { send: &v_own, rows: &self.counts },
            Start::AllGather { send: &queries, rows: &self.query_asked },
        ];
        let [sending_k, sending_v, queries] = start_all(self.comm, starts)?;
        let k = self.comm.wait(sending_k)?;
        let v = self.comm.wait(sending_v)?;
        let fresh = k.into_iter().zip(v).zip(&self.at_fresh).map(|((k, v), at)| Keys { k, v, at: at.clone() });
        let mut keys = self.prefix.keys(layer);
        keys.extend(self.stale.keys(layer));
        keys.extend(fresh);
        let at_own = self.at_fresh[rank].clone();
        let own = self.math.layer(layer).attend_in_slices(&q_own, &last_of(&at_own, self.own_asked), &keys)?;
        let all_q = all_queries(self.comm, queries, &q_query)?;
        let tail = Keys { k: k_tail.clone(), v: v_tail.clone(), at: self.at_tail.clone() };
        let own_fresh = Keys { k: k_own.clone(), v: v_own.clone(), at: at_own };
        let query = self.query(layer, &all_q, tail, own_fresh, dtype)?;
        self.fresh.layers.push((k_own, v_own));
        self.tail.layers.push((k_tail, v_tail));
        Ok(Partial::below_each_other(&[own, query])?)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        (self.own_asked, self.query_asked) = (0, self.last_asked.clone());
        self.at_query = last_of(&self.at_query, 1);
        self.query_asked[self.comm.rank()]
    }
}

fn pair(parts: Vec<Tensor>) -> [Tensor; 2] {
    parts.try_into().expect("two counts give two parts")
}
