//! Parts that the exact distributed methods share: a shard of the sequence on every rank, and the
//! cache that it leaves.

use candle_core::Tensor;
use tributary_kernels::Positions;
use tributary_model::Rows;
use tributary_protocol::deal::shards;
use tributary_protocol::{Layout, Plan, Source};

use super::interface::{Prefilled, nothing_selected};
use super::output::Output;
use crate::context::Context;
use crate::error::Result;
use crate::handing;
use crate::kv::{Block, KvCache, View};
use crate::placement::Placement;

/// The sequence dealt to ranks.
pub(super) struct Shards {
    /// Rows of each rank, ascending.
    pub rows: Vec<Vec<u32>>,
    /// Positions of each rank's rows.
    pub at: Vec<Positions>,
    placement: Placement,
}

impl Shards {
    /// Shards of a plan's sequence.
    ///
    /// # Errors
    /// As [`Context::placement`].
    pub fn new(cx: &mut Context<'_>, plan: &Plan) -> Result<Self> {
        let (world, placement) = (cx.comm.size(), cx.placement(plan, &plan.request_order(), Layout::Global)?);
        let rows = shards(plan, world).expect("the method splits the sequence");
        assert_eq!(rows.len(), world, "shards");
        let last_row = plan.total_rows() as u32 - 1;
        assert_eq!(rows[plan.owner].last(), Some(&last_row), "the prompt's last row on its owner, rank {}", plan.owner);
        let at = rows.iter().map(|rows| placement.at(rows)).collect();
        Ok(Self { rows, at, placement })
    }

    /// Number of slices of a layer.
    pub fn slices(&self, plan: &Plan) -> usize {
        plan.context_slices(self.rows.iter().map(Vec::len).max().unwrap_or(0))
    }

    /// This rank's rows, embedded.
    pub fn embed(&self, cx: &mut Context<'_>, plan: &Plan) -> Result<Rows> {
        let sources = plan.sources();
        let own: Vec<Source> = self.rows[cx.rank()].iter().map(|&row| sources[row as usize]).collect();
        cx.prefilled_rows = own.len();
        handing::last_pass(|| (View::default(), self.at[cx.rank()].clone()));
        cx.embed(&own)
    }

    /// The result after the layers: the cache stays where it is.
    pub fn finish(self, cx: &Context<'_>, plan: &Plan, output: Output, layers: Vec<(Tensor, Tensor)>) -> Prefilled {
        let rank = cx.rank();
        let block = Block::of(self.rows[rank].clone(), layers).complete(cx.models.main.config().layers);
        Prefilled {
            owner: plan.owner,
            output,
            cache: KvCache { own: vec![block], ..KvCache::default() },
            alone: plan.decodes_alone(cx.comm.size()),
            placement: self.placement,
            selection: nothing_selected(plan),
        }
    }
}
