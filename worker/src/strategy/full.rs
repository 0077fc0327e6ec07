//! Full prefill of the whole prompt on one rank, the plan's owner. *Exact*: it is the baseline of
//! the others.

use tributary_protocol::{Layout, Phase, Plan};

use super::interface::{Prefilled, Strategy, nothing_selected};
use super::output::{self, Output};
use crate::attention::ChunkPrefill;
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache, View};
use crate::placement::Placement;

/// One rank computes, the others wait.
pub struct Full;

impl Strategy for Full {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        cx.enter(Phase::ChunkPrefill, plan)?;
        let placement = Placement::new(plan, &plan.request_order(), Layout::Global);
        let mut this = Prefilled {
            owner: plan.owner,
            output: Output::default(),
            cache: KvCache::default(),
            alone: plan.decodes_alone(cx.comm.size()),
            placement,
            selection: nothing_selected(plan),
        };
        if cx.rank() != plan.owner {
            cx.math.progress.idle_layers(cx.models.main.config().layers)?;
            return Ok(this);
        }
        let sources = plan.sources();
        let mut block = Block::new((0..sources.len() as u32).collect::<Vec<_>>());
        let at = this.placement.at(block.rows());
        let mut attention = ChunkPrefill {
            math: cx.math.clone(),
            at,
            before: View::default(),
            asked: 1,
            layers: Vec::new(),
            outgoing: None,
            compression: None,
        };
        let rows = (cx.embed(&sources)?, block.rows());
        this.output = output::run((cx.models.main, plan, plan.owner), rows, &mut attention)?;
        block.layers = attention.layers;
        cx.prefilled_rows = sources.len();
        this.cache.own = vec![block.complete(cx.models.main.config().layers)];
        Ok(this)
    }
}
