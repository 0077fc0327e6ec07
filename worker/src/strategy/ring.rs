//! Ring attention, zigzag-balanced and overlapped (Ring Attention, Liu et al. 2023; the zigzag
//! split is common practice since). *Exact*.

use tributary_protocol::{Phase, Plan};

use super::interface::{Prefilled, Strategy};
use super::output;
use super::shard::Shards;
use crate::attention;
use crate::context::Context;
use crate::error::Result;

/// Keys and values travel, point to point.
pub struct Ring;

impl Strategy for Ring {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        cx.enter(Phase::ChunkPrefill, plan)?;
        let (shards, rank) = (Shards::new(cx, plan)?, cx.rank());
        let rows = shards.embed(cx, plan)?;
        let math = cx.math.sliced(shards.slices(plan));
        let mut attention = attention::Ring::new(math, cx.comm, shards.at.clone(), plan.owner);
        let rows = (rows, &*shards.rows[rank]);
        let output = output::run((cx.models.main, plan, rank), rows, &mut attention)?;
        let layers = attention.into_layers();
        Ok(shards.finish(cx, plan, output, layers))
    }
}
