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
        let (shards, rank) = (Shards::new(cx, plan)?, cx.rank());
        let rows = shards.embed(cx, plan)?;
        let (kv_heads, math) = (cx.models.main.config().kv_heads, cx.math.sliced(shards.slices(plan)));
        let attention = attention::AllGather::new(math, cx.comm, shards.at.clone(), plan.owner);
        let mut attention = attention.gathering(self.heads_per_gather.unwrap_or(kv_heads), kv_heads);
        let rows = (rows, &*shards.rows[rank]);
        let output = output::run((cx.models.main, plan, rank), rows, &mut attention)?;
        let layers = attention.into_layers();
        Ok(shards.finish(cx, plan, output, layers))
    }
}
