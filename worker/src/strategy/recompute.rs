//! The recompute pass: selected rows from their token ids, through all layers, at their global
//! positions, followed by the query's rows.

use tributary_methods::PictureRows;
use tributary_model::{Config, Rows};
use tributary_protocol::deal::{Homes, RowCost};
use tributary_protocol::{Exchange, Plan, Source};

use super::arrivals::Arrivals;
use super::output::{self, Output};
use crate::attention::{Mix, PassQ, Placed, Replicated, SelectedOnly};
use crate::context::Context;
use crate::error::Result;
use crate::handing;
use crate::kv::{KvCache, View};
use crate::placement::Placement;

/// Recomputes `selected`; fresh rows and the query's join the cache. If the other rows are dropped,
/// cached rows are hidden and recomputed ones are mixed with their cached state. With a second
/// placement the query's rows see context rows there.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub(super) fn recompute(
    cx: &mut Context<'_>,
    plan: &Plan,
    (cache, arrivals): (&mut KvCache, &mut Arrivals),
    (placement, reading): (&Placement, Option<&Placement>),
    selected: &[u32],
) -> Result<Output> {
    let homes = homes(cx, plan, placement, (selected, plan.query_rows().collect()), plan.exchange);
    assert_eq!(homes.context.len(), cx.comm.size(), "ranks that rows are dealt to");
    let rows = match plan.method.picture_rows() {
        PictureRows::Flat => embed(cx, plan, &homes)?.without_levels(),
        PictureRows::All | PictureRows::Never => embed(cx, plan, &homes)?,
    };
    cx.recomputed_rows = rows.len();
    let most = (0..cx.comm.size()).map(|rank| homes.of(rank).len()).max().unwrap_or(0);
    let (math, models, rank) = (cx.math.sliced(plan.context_slices(most)), cx.models.clone(), cx.rank());
    let hidden = plan.out_of_sight(selected);
    let cached: &KvCache = cache;
    let placed = Placed { cache: cached, placement, hidden: &hidden };
    handing::last_pass(|| {
        let placement = reading.unwrap_or(placement);
        let own = cached.view_of_own(placement, selected);
        let prefix = if rank == plan.owner { cached.view_of_prefix(placement) } else { View::default() };
        (prefix.and(own), placement.at(&homes.of(rank)))
    });
    let reading = reading.map(|placement| placed.at(placement));
    let mix = |rows: &[u32]| {
        let blocks = cached.own.iter().chain(&cached.others);
        plan.parts().map(|sparse| Mix::new(sparse.theta, blocks, rows))
    };
    let own = &homes.context[rank];
    let (of, rows) = ((&models, plan, rank), (rows, &*homes.of(rank)));
    let (output, (fresh, tail)) = match plan.exchange {
        Exchange::Replicate => {
            let pass = Replicated::new(math, &mut *cx.comm, &homes, placed);
            let mut pass = pass.reading(reading).mixing(mix(own));
            (output::run_arriving(of, arrivals, rows, &mut pass)?, pass.into_blocks())
        }
        Exchange::PassQ => {
            let keepers = plan.keepers();
            let keeper = |row: u32| keepers[row as usize];
            let pass = PassQ::new(math, &mut *cx.comm, &homes, placed, &keeper);
            let mut pass = pass.reading(&homes, reading).mixing(mix);
            (output::run_arriving(of, arrivals, rows, &mut pass)?, pass.into_blocks())
        }
        Exchange::Selected => {
            let pass = SelectedOnly::new(math, &mut *cx.comm, &homes, placed);
            let mut pass = pass.reading(reading).mixing(mix(own));
            (output::run_arriving(of, arrivals, rows, &mut pass)?, pass.into_blocks())
        }
    };
    let layers = cx.models.main.config().layers;
    cache.fresh = vec![fresh.complete(layers)];
    cache.tail = tail.complete(layers);
    Ok(output)
}

/// This rank's rows of a pass, embedded.
pub(super) fn embed(cx: &Context<'_>, plan: &Plan, homes: &Homes) -> Result<Rows> {
    let sources = plan.sources();
    let own: Vec<Source> = homes.of(cx.rank()).iter().map(|&row| sources[row as usize]).collect();
    cx.embed(&own)
}

/// Deals the rows of a pass to ranks.
pub(super) fn homes(
    cx: &Context<'_>,
    plan: &Plan,
    placement: &Placement,
    rows: (&[u32], Vec<u32>),
    exchange: Exchange,
) -> Homes {
    Homes::new(plan, cx.comm.size(), placement.places(), rows, exchange, row_cost(cx.models.main.config()))
}

/// FLOPs of a row and of a row and key in one layer.
fn row_cost(config: &Config) -> RowCost {
    let (query_width, kv_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    RowCost::of_decoder(config.hidden, query_width, kv_width, config.mlp_width())
}
