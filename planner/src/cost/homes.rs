//! Ranks that compute and keep each row, for a plan and a selection.

use std::collections::HashSet;

use tributary_protocol::deal::{Homes, RowCost};
use tributary_protocol::{Drift, Exchange, Plan};

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

/// The context rows of a pass on each rank, in causal order, dealt as the ranks deal them. With
/// `query`, the owner also has the query's rows.
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
    let cost = RowCost::of_decoder(shape.hidden, shape.query_width(), shape.kv_width(), shape.mlp_width());
    let query = if query { plan.query_rows().collect() } else { Vec::new() };
    let homes = Homes::new(plan, world, &places, (rows, query), exchange, cost);
    homes.context.into_iter().map(|rows| rows.into_iter().map(row).collect()).collect()
}

/// The rows whose drift is measured in each layer after the first, on each rank: at first all rows
/// that may be selected, then ever fewer of them.
pub(super) fn drifting(
    plan: &Plan,
    world: usize,
    shape: &ModelShape,
    selected: &Selected,
    drift: Drift,
) -> Vec<Vec<Vec<Row>>> {
    let rows = plan.candidate_rows(&selected.order);
    let all = homes(plan, world, shape, selected, (&rows, false), Exchange::Replicate);
    let places = plan.places(&selected.order);
    let still = |rows: &[u32]| -> Vec<Vec<Row>> {
        let stay: HashSet<u32> = rows.iter().map(|&row| places[row as usize]).collect();
        all.iter().map(|rows| rows.iter().copied().filter(|row| stay.contains(&row.place)).collect()).collect()
    };
    let later: Vec<_> = drift.went_on(plan.budget, &selected.measured).into_iter().map(still).collect();
    std::iter::once(all.clone()).chain(later).collect()
}
