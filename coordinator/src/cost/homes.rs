//! Which rank computes and keeps which rows, for a plan and a selection.

use tributary_protocol::deal::{Homes, RowCost};
use tributary_protocol::{Exchange, Plan};

use super::Selected;
use crate::ModelShape;

/// A row of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// Its place in the causal order.
    pub(super) place: u32,
    /// The rank that keeps its chunk.
    pub(super) keeper: usize,
}

/// The context rows of a pass on each rank, in causal order, dealt as the ranks deal them. With `query` the query's rows ride
/// on the owner.
pub(super) fn homes(
    plan: &Plan,
    world: usize,
    shape: &ModelShape,
    selected: &Selected,
    (rows, query): (&[u32], bool),
    exchange: Exchange,
) -> Vec<Vec<Row>> {
    let (places, keepers) = (plan.places(&selected.order), plan.keepers());
    let row = |row: u32| Row { place: places[row as usize], keeper: keepers[row as usize] };
    let cost = RowCost::of_decoder(shape.hidden, shape.query_width(), shape.kv_width(), shape.intermediate);
    let query = if query { plan.query_rows().collect() } else { Vec::new() };
    let homes = Homes::new(plan, world, &places, (rows, query), exchange, cost);
    homes.context.into_iter().map(|rows| rows.into_iter().map(row).collect()).collect()
}
