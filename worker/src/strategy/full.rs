//! Full prefill of the whole prompt on one rank, the plan's owner. *Exact*: it is the baseline of
//! the others. With a cached prefix only the rows after it are computed.

use tributary_protocol::{Layout, Phase, Plan, Source};

use super::interface::{Prefilled, Strategy, nothing_selected};
use super::output::{self, Output};
use super::prefix;
use crate::attention::ChunkPrefill;
use crate::context::Context;
use crate::error::Result;
use crate::handing;
use crate::kv::{Block, KvCache, View};

/// One rank computes, the others wait.
pub struct Full;

impl Strategy for Full {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        cx.enter(Phase::ChunkPrefill, plan)?;
        let placement = cx.placement(plan, &plan.prompt_order(), Layout::Global)?;
        let mut this = Prefilled {
            owner: plan.owner,
            output: Output::default(),
            cache: KvCache::default(),
            alone: plan.decodes_alone(cx.comm.size()),
            placement,
            selection: nothing_selected(plan),
        };
        let math = cx.math.sliced(plan.context_slices(plan.total_rows() - plan.reused_rows));
        if cx.rank() != plan.owner {
            math.progress.idle_layers(cx.models.main.config().layers)?;
            return Ok(this);
        }
        let mut rows: Vec<u32> = (0..plan.total_rows() as u32).collect();
        rows.sort_by_key(|&row| this.placement.order_of(row));
        let cached = prefix::cached(cx, plan, &rows)?;
        let rows = rows.split_off(cached.as_ref().map_or(0, |block| block.rows().len()));
        let all = plan.sources();
        let sources: Vec<Source> = rows.iter().map(|&row| all[row as usize]).collect();
        let mut block = Block::new(rows);
        let at = this.placement.at(block.rows());
        let view = |block: &Block| View::of(block.clone(), this.placement.at(block.rows()));
        let before = cached.as_ref().map(view).unwrap_or_default();
        handing::last_pass(|| (before.clone(), at.clone()));
        let mut attention = ChunkPrefill::new(math, at, before).asking(1);
        let rows = (cx.embed(&sources)?, block.rows());
        this.output = output::run((cx.models.main, plan, plan.owner), rows, &mut attention)?;
        (block.layers, _) = attention.into_parts();
        cx.prefilled_rows = sources.len();
        let computed = block.complete(cx.models.main.config().layers);
        this.cache.own = cached.into_iter().chain([computed]).collect();
        Ok(this)
    }
}
