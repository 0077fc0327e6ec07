//! What the exact distributed methods share: a shard of the sequence on every rank, and the cache it leaves.

use candle_core::Tensor;
use tributary_kernels::Positions;
use tributary_protocol::{Layout, Plan};

use super::{Prefilled, nothing_selected, request_order};
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache};
use crate::model::Rows;
use crate::placement::Placement;

/// The sequence dealt to ranks.
pub(super) struct Shards {
    /// Rows of each rank, ascending.
    pub rows: Vec<Vec<u32>>,
    /// Where each rank's rows stand.
    pub at: Vec<Positions>,
    /// The rank of the last row.
    pub owner: usize,
    placement: Placement,
}

impl Shards {
    /// Shards of a plan's sequence, split by `split(total, world)`.
    pub fn new(plan: &Plan, world: usize, split: fn(usize, usize) -> Vec<Vec<u32>>) -> Self {
        let placement = Placement::new(plan, &request_order(plan), Layout::Global);
        let rows = split(plan.total_tokens(), world);
        assert_eq!(rows.len(), world, "shards");
        assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), plan.total_tokens(), "rows of all shards");
        let at = rows.iter().map(|rows| placement.at(rows)).collect();
        let last_row = plan.total_tokens() as u32 - 1;
        let owner = rows.iter().position(|rows| rows.last() == Some(&last_row)).expect("some rank has the last row");
        Self { rows, at, placement, owner }
    }

    /// This rank's rows, embedded.
    pub fn embed(&self, cx: &mut Context<'_>, plan: &Plan) -> Result<Rows> {
        let ids = plan.all_ids();
        let own: Vec<u32> = self.rows[cx.rank()].iter().map(|&row| ids[row as usize]).collect();
        cx.prefilled_rows = own.len();
        cx.model.embed(&own)
    }

    /// What is left when the layers are done: the cache stays where it is. `last` is the prompt's last row, on its owner.
    pub fn finish(self, cx: &Context<'_>, plan: &Plan, last: Rows, layers: Vec<(Tensor, Tensor)>) -> Prefilled {
        let rank = cx.rank();
        let block = Block { rows: self.rows[rank].clone().into(), layers }.complete(cx.model.config().layers);
        Prefilled {
            owner: self.owner,
            last: (rank == self.owner).then_some(last),
            cache: KvCache { own: vec![block], ..KvCache::default() },
            alone: cx.comm.size() == 1,
            placement: self.placement,
            selection: nothing_selected(plan),
        }
    }
}
