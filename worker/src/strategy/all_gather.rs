//! Sequence parallelism by gathering keys and values: contiguous split, every layer's keys and
//! values on every rank.
//! *Exact*. Causal work is uneven by construction; that is the usual baseline of the literature.

use tributary_protocol::{Phase, Plan};

use super::interface::{Prefilled, Strategy};
use super::output;
use super::shard::Shards;
use crate::attention;
use crate::context::Context;
use crate::error::Result;

/// Keys and values are gathered.
pub struct AllGather {
    /// KV heads gathered at a time; all at once where absent.
    pub heads_per_gather: Option<usize>,
}

impl Strategy for AllGather {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        cx.enter(Phase::ChunkPrefill, plan)?;
        let (shards, rank) = (Shards::new(plan, cx.comm.size()), cx.rank());
        let rows = shards.embed(cx, plan)?;
        let config = cx.models.main.config();
        let mut attention = attention::AllGather {
            math: cx.math.sliced(shards.slices(plan)),
            comm: cx.comm,
            at: shards.at.clone(),
            owner: plan.owner,
            heads_per_gather: self.heads_per_gather.unwrap_or(config.kv_heads),
            layers: Vec::new(),
        };
        let rows = (rows, &*shards.rows[rank]);
        let output = output::run((cx.models.main, plan, rank), rows, &mut attention)?;
        let layers = attention.layers;
        Ok(shards.finish(cx, plan, output, layers))
    }
}
