//! Star attention (Acharya et al. 2024): blocks of prefix and context, each computed behind the first block, nothing sent; then the query's
//! rows attend to all blocks, wherever they lie, and partial results are merged. *Approximate*; exact where there are one or two
//! blocks, because then every row sees all that stand before it.

use tributary_kernels::{Positions, SHARED};
use tributary_protocol::deal::{Homes, blocks};
use tributary_protocol::{Layout, Phase, Plan, Source};

use super::{Prefilled, Strategy, nothing_selected, recompute};
use crate::attention::{Anchored, PassQ};
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache};
use crate::placement::Placement;

/// Blocks behind an anchor.
pub struct Star;

impl Strategy for Star {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        cx.enter(Phase::ChunkPrefill, plan)?;
        let (rank, world, layers) = (cx.rank(), cx.comm.size(), cx.models.main.config().layers);
        let placement = Placement::new(plan, &plan.request_order(), Layout::Global);
        let mut cache = KvCache { own: vec![own_blocks(cx, plan)?.complete(layers)], ..KvCache::default() };
        cx.enter(Phase::Recompute, plan)?;
        let homes = Homes { context: vec![Vec::new(); world], query: plan.query_rows().collect(), owner: plan.owner };
        let rows = recompute::embed(cx, plan, &homes)?;
        cx.recomputed_rows = rows.len();
        let math = cx.math.clone();
        let mut pass = PassQ::new(math, &mut *cx.comm, &homes, &cache, &placement, &[], &|_| rank);
        let last = cx.models.main.prompt(rows, &mut pass)?;
        cache.tail = pass.into_blocks().1.complete(layers);
        Ok(Prefilled {
            owner: plan.owner,
            last: (rank == plan.owner).then_some(last),
            cache,
            alone: plan.decodes_alone(world),
            placement,
            selection: nothing_selected(plan),
        })
    }
}

/// This rank's blocks, computed.
fn own_blocks(cx: &mut Context<'_>, plan: &Plan) -> Result<Block> {
    let all = blocks(plan, cx.comm.size()).expect("the method works in blocks");
    let anchor = all.iter().flatten().find(|block| block.start == 0).cloned().unwrap_or(0..0);
    let own = &all[cx.rank()];
    let has_anchor = own.iter().any(|block| block.start == 0);
    let first_kept = if has_anchor || own.is_empty() { 0 } else { anchor.len() };
    let borrowed = (first_kept > 0).then(|| anchor.clone());
    let (mut rows, mut segments) = (Vec::new(), Vec::new());
    for block in borrowed.into_iter().chain(own.iter().cloned()) {
        let segment = if block.start == 0 { SHARED } else { block.start };
        segments.extend(std::iter::repeat_n(segment, block.len()));
        rows.extend(block);
    }
    let sources = plan.sources();
    let taken: Vec<Source> = rows.iter().map(|&row| sources[row as usize]).collect();
    cx.prefilled_rows = rows.len();
    // Rows are numbered as they stand in the sequence.
    let at = Positions::new(rows.clone(), rows.clone(), segments);
    let mut attention = Anchored::new(cx.math.clone(), at, first_kept);
    cx.models.main.prompt(cx.embed(&taken)?, &mut attention)?;
    Ok(Block::of(rows.split_off(first_kept), attention.into_layers()))
}
