//! Ring attention with queries that travel, zigzag-balanced and overlapped (pass-Q of Context
//! Parallelism for Scalable Million-Token Inference, Yang et al. 2024). *Exact*.

use tributary_protocol::{Phase, Plan};

use super::interface::{Prefilled, Strategy};
use super::output;
use super::shard::Shards;
use crate::attention::RingQueries;
use crate::context::Context;
use crate::error::Result;

/// Queries travel, point to point, and their partial results come back.
pub struct PassQ;

impl Strategy for PassQ {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        cx.enter(Phase::ChunkPrefill, plan)?;
        let (shards, rank) = (Shards::new(cx, plan)?, cx.rank());
        let rows = shards.embed(cx, plan)?;
        let math = cx.math.sliced(shards.slices(plan));
        let mut attention = RingQueries::new(math, cx.comm, shards.at.clone(), plan.owner);
        let rows = (rows, &*shards.rows[rank]);
        let output = output::run((cx.models.main, plan, rank), rows, &mut attention)?;
        let layers = attention.into_layers();
        Ok(shards.finish(cx, plan, output, layers))
    }
}
