//! Ring attention, zigzag-balanced and overlapped (Ring Attention, Liu et al. 2023; the zigzag split is common practice
//! since). *Exact*.

use tributary_protocol::{Phase, Plan};

use super::shard::Shards;
use super::{Prefilled, Strategy};
use crate::attention;
use crate::context::Context;
use crate::error::Result;

/// Keys and values travel, point to point.
pub struct Ring;

impl Strategy for Ring {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        cx.enter(Phase::ChunkPrefill, plan)?;
        let shards = Shards::new(plan, cx.comm.size());
        let rows = shards.embed(cx, plan)?;
        let mut attention = attention::Ring {
            math: cx.math.clone(),
            comm: cx.comm,
            at: shards.at.clone(),
            owner: plan.owner,
            layers: Vec::new(),
        };
        let last = cx.models.main.prompt(rows, &mut attention)?;
        let layers = attention.layers;
        Ok(shards.finish(cx, plan, last, layers))
    }
}
