//! Blocks of prefix and context, computed on the ranks that keep them; then the query's rows attend
//! to all blocks, wherever they lie, and partial results are merged.
//! *Approximate*. The method decides the rows that a block sees beside its own: the first block
//! (Star Attention, Acharya et al. 2024), or an anchor and rows that earlier blocks pass on (APB,
//! Huang et al. 2025). Exact where every row sees all earlier ones.

use std::ops::Range;

use tributary_kernels::{Positions, SHARED};
use tributary_protocol::deal::{self, Homes};
use tributary_protocol::{Layout, Phase, Plan, Source};

use super::interface::{Prefilled, Strategy, nothing_selected};
use super::{output, recompute};
use crate::attention::{Anchored, PassQ, Passing, PassingBlock, PassingRows, Placed};
use crate::context::Context;
use crate::error::Result;
use crate::handing;
use crate::kv::{Block, KvCache};

/// Blocks after an anchor.
pub struct Blocks;

impl Strategy for Blocks {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        cx.enter(Phase::ChunkPrefill, plan)?;
        let (rank, world, layers) = (cx.rank(), cx.comm.size(), cx.models.main.config().layers);
        let placement = cx.placement(plan, &plan.request_order(), Layout::Global)?;
        let mut cache = KvCache { own: vec![own_blocks(cx, plan)?.complete(layers)], ..KvCache::default() };
        cx.enter(Phase::Recompute, plan)?;
        let homes = Homes { context: vec![Vec::new(); world], query: plan.query_rows().collect(), owner: plan.owner };
        let rows = recompute::embed(cx, plan, &homes)?;
        cx.recomputed_rows = rows.len();
        handing::last_pass(|| (cache.view_of_own(&placement, &[]), placement.at(&homes.of(rank))));
        let math = cx.math.clone();
        let placed = Placed { cache: &cache, placement: &placement, hidden: &[] };
        let mut pass = PassQ::new(math, &mut *cx.comm, &homes, placed, &|_| rank);
        let output = output::run((cx.models.main, plan, rank), (rows, &homes.of(rank)), &mut pass)?;
        cache.tail = pass.into_blocks().1.complete(layers);
        Ok(Prefilled {
            owner: plan.owner,
            output,
            cache,
            alone: plan.decodes_alone(world),
            placement,
            selection: nothing_selected(plan),
        })
    }
}

/// This rank's blocks, computed.
fn own_blocks(cx: &mut Context<'_>, plan: &Plan) -> Result<Block> {
    let all = deal::blocks(plan, cx.comm.size()).expect("the method works in blocks");
    let pass = BlockRows::new(plan, &all, cx.rank());
    let sources = plan.sources();
    let taken: Vec<Source> = pass.rows.iter().map(|&row| sources[row as usize]).collect();
    cx.prefilled_rows = pass.rows.len();
    let rows = cx.embed(&taken)?;
    // Rows are numbered by their place in the sequence.
    let at = Positions::new(pass.rows.clone(), pass.rows.clone(), pass.segments);
    let kept: Vec<u32> = pass.kept.iter().map(|&index| pass.rows[index as usize]).collect();
    let most = (0..cx.comm.size()).map(|rank| BlockRows::count(plan, &all, rank)).max().unwrap_or(0);
    let math = cx.math.sliced(plan.context_slices(most));
    let layers = if all.pass_on() {
        let own = PassingRows { at, blocks: pass.blocks, kept: pass.kept };
        let mut attention = Passing::new(math, &mut *cx.comm, own, all.passed_counts());
        cx.models.main.prompt(rows, &mut attention)?;
        attention.into_layers()
    } else {
        let mut attention = Anchored::new(math, at, pass.kept);
        cx.models.main.prompt(rows, &mut attention)?;
        attention.into_layers()
    };
    Ok(Block::of(kept, layers))
}

/// The rows of a rank's pass: the anchor's, if it computes them for its blocks alone, and every
/// block's. Rows of the query follow each block if it passes keys on.
#[derive(Default)]
struct BlockRows {
    rows: Vec<u32>,
    segments: Vec<u32>,
    /// Those that are kept, by their place in the pass.
    kept: Vec<u32>,
    blocks: Vec<PassingBlock>,
}

impl BlockRows {
    fn new(plan: &Plan, all: &deal::Blocks, rank: usize) -> Self {
        let mut pass = Self::default();
        let shared = |row: u32, segment: u32| if all.anchor.contains(&row) { SHARED } else { segment };
        pass.add(all.borrowed(rank), |row| shared(row, 0));
        let query = if all.pass_on() { plan.query_rows() } else { 0..0 };
        for block in &all.of_ranks[rank] {
            let rows = pass.add(block.clone(), |row| shared(row, block.start));
            pass.kept.extend(rows.clone());
            let query = pass.add(query.clone(), |_| block.start);
            let candidates = rows.end - all.candidates(block).len() as u32..rows.end;
            pass.blocks.push(PassingBlock {
                rows: rows.start..query.end,
                candidates,
                query,
                passed: all.passed_of(block),
            });
        }
        pass
    }

    /// Number of rows in the pass of a rank.
    fn count(plan: &Plan, all: &deal::Blocks, rank: usize) -> usize {
        let query = if all.pass_on() { plan.query_rows().len() } else { 0 };
        all.borrowed(rank).len() + all.of_ranks[rank].iter().map(|block| block.len() + query).sum::<usize>()
    }

    /// Adds rows, and returns their places in the pass.
    fn add(&mut self, rows: Range<u32>, segment: impl Fn(u32) -> u32) -> Range<u32> {
        let from = self.rows.len() as u32;
        self.segments.extend(rows.clone().map(segment));
        self.rows.extend(rows);
        from..self.rows.len() as u32
    }
}
