//! Parallel contexts (APE): the query attends to the context with a separate temperature, and to
//! prefix, query and generated rows as usual. The context's log-sum-exp is weighted before the two
//! parts merge. Nothing is recomputed. If one rank holds all keys, it attends alone. Otherwise
//! queries go to the keys and partial results return; those of all ranks merge first.

use tributary_comm::Communicator;
use tributary_kernels::{Keys, Partial, Positions, merge, scale};
use tributary_model::{Attention, Progress, Qkv};
use tributary_protocol::{Ape, Plan};

use super::placed::Placed;
use super::rounds::{all_queries, bring_home, last_of, start_queries};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// Rows: the query's on the owner, none elsewhere.
pub struct Parallel<'a> {
    math: Math,
    ape: Ape,
    /// Communicator with the other ranks; absent if the owner holds all context rows.
    comm: Option<&'a mut dyn Communicator>,
    owner: usize,
    /// Number of asking rows of each rank.
    counts: Vec<usize>,
    /// Positions of the query's asking rows, and of those on this rank.
    at_query: Positions,
    at: Positions,
    at_tail: Positions,
    context: View,
    prefix: View,
    tail: Block,
}

impl<'a> Parallel<'a> {
    /// The query's rows of `plan` over a cache.
    pub fn new(math: Math, comm: &'a mut dyn Communicator, plan: &Plan, ape: Ape, placed: Placed<'_>) -> Self {
        let Placed { cache, placement, hidden } = placed;
        let (world, query): (usize, Vec<u32>) = (comm.size(), plan.query_rows().collect());
        let tail = Block::new(if comm.rank() == plan.owner { query.clone() } else { Vec::new() });
        let mut counts = vec![0; world];
        counts[plan.owner] = query.len();
        Self {
            math,
            ape,
            owner: plan.owner,
            counts,
            at_query: placement.at(&query),
            at: placement.at(tail.rows()),
            at_tail: placement.at(tail.rows()),
            context: cache.view_of_context(placement, hidden),
            prefix: cache.view_of_prefix(placement),
            comm: (!plan.decodes_alone(world)).then_some(comm),
            tail,
        }
    }

    /// The query's rows, if this rank has them.
    pub fn into_tail(self) -> Block {
        self.tail
    }

    /// Attention of this rank's rows to the context of all ranks.
    fn context(&mut self, layer: usize, qkv: &Qkv) -> Result<Partial> {
        let tempered = self.math.layers[layer].tempered(self.ape.temperature);
        let math = self.math.layer(layer).with(&tempered);
        let keys = self.context.keys(layer);
        let Some(comm) = &mut self.comm else { return math.attend(&qkv.q, &self.at, &keys) };
        let dtype = self.math.dtype;
        let queries = start_queries(*comm, &qkv.q, &self.counts, dtype)?;
        let all_q = all_queries(*comm, queries, &qkv.q)?;
        let part = math.attend(&all_q, &self.at_query, &keys)?;
        bring_home(*comm, &part, &self.counts, dtype)
    }
}

impl Attention for Parallel<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let context = weighed(self.context(layer, &qkv)?, self.ape)?;
        let Qkv { q, k, v } = qkv;
        let mut rest = self.prefix.keys(layer);
        rest.push(Keys { k: k.clone(), v: v.clone(), at: self.at_tail.clone() });
        self.tail.layers.push((k, v));
        Ok(merge(&context, &self.math.layer(layer).attend(&q, &self.at, &rest)?)?)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        self.counts[self.owner] = 1;
        self.at_query = last_of(&self.at_query, 1);
        let asked = self.at.len().min(1);
        self.at = last_of(&self.at, asked);
        asked
    }
}

/// Attention to the whole context, weighted for the merge with the rest.
pub(super) fn weighed(context: Partial, ape: Ape) -> Result<Partial> {
    if context.lse.elem_count() == 0 || ape.weight() == 1.0 {
        return Ok(context);
    }
    let lse = scale(&context.lse, ape.weight())?;
    Ok(Partial { lse, ..context })
}
