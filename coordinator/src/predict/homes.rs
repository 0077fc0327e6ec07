//! Which rank computes and keeps which rows: the same dealing as the ranks do, for a plan and a selection.

use tributary_protocol::deal::{RowCost, contiguous, deal_rows, zigzag};
use tributary_protocol::{Exchange, Method, Plan};

use super::Selected;
use crate::ModelShape;

/// Context rows that each rank keeps: those of its chunks.
pub(super) fn kept_rows(plan: &Plan, world: usize) -> Vec<usize> {
    let mut rows = vec![0; world];
    for chunk in &plan.chunks {
        rows[chunk.rank] += chunk.ids.len();
    }
    rows
}

/// As [`kept_rows`], of chunks that come from the chunk cache.
pub(super) fn warm_rows(plan: &Plan, world: usize) -> Vec<usize> {
    let mut rows = vec![0; world];
    for chunk in plan.chunks.iter().filter(|chunk| chunk.warm) {
        rows[chunk.rank] += chunk.ids.len();
    }
    rows
}

/// The sequence split over ranks by an exact distributed method, rows ascending; nothing for the others.
pub(super) fn shards(plan: &Plan, world: usize) -> Vec<Vec<u32>> {
    match plan.method {
        Method::Ring => zigzag(plan.total_tokens(), world),
        Method::AllGather { .. } => contiguous(plan.total_tokens(), world),
        _ => Vec::new(),
    }
}

/// The rank that has the prompt's last row and draws the first token.
pub(super) fn owner(plan: &Plan, world: usize) -> usize {
    let last = plan.total_tokens().saturating_sub(1) as u32;
    shards(plan, world).iter().position(|rows| rows.last() == Some(&last)).unwrap_or(world - 1)
}

/// The rank of each row's chunk, for every row of prefix and context.
fn rank_of(plan: &Plan) -> Vec<usize> {
    let prefix = std::iter::repeat_n(0, plan.prefix_tokens());
    let context = plan.chunks.iter().flat_map(|chunk| std::iter::repeat_n(chunk.rank, chunk.ids.len()));
    prefix.chain(context).collect()
}

/// A row of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// Its place in the causal order.
    pub(super) place: u32,
    /// The rank that keeps its chunk.
    pub(super) keeper: usize,
}

/// The context rows of a pass on each rank, in causal order.
///
/// Under `selected` a row stays with its chunk's rank. Else rows are dealt by cost, `query` rows riding on the last rank;
/// under `pass-q` attention is done where the keys are, so that only a row's own arithmetic counts.
pub(super) fn homes(
    plan: &Plan,
    world: usize,
    shape: &ModelShape,
    selected: &Selected,
    rows: &[u32],
    query: usize,
    exchange: Exchange,
) -> Vec<Vec<Row>> {
    let (places, keepers) = (selected.places(plan), rank_of(plan));
    let row = |row: u32| Row { place: places[row as usize], keeper: keepers[row as usize] };
    let mut ordered: Vec<(u32, u32)> = rows.iter().map(|&row| (row, places[row as usize])).collect();
    ordered.sort_by_key(|&(_, place)| place);
    let mut cost = RowCost::of_decoder(shape.hidden, shape.query_width(), shape.kv_width(), shape.intermediate);
    let dealt = match exchange {
        Exchange::Selected => {
            let mut stay = vec![Vec::new(); world];
            ordered.iter().for_each(|&(number, _)| stay[keepers[number as usize]].push(number));
            stay
        }
        Exchange::Replicate => deal_rows(&ordered, world, query, plan.total_tokens() as u32, cost),
        Exchange::PassQ => {
            cost.key = 0.0;
            deal_rows(&ordered, world, query, plan.total_tokens() as u32, cost)
        }
    };
    assert_eq!(dealt.iter().map(Vec::len).sum::<usize>(), rows.len(), "rows that are dealt to ranks");
    dealt.into_iter().map(|rows| rows.into_iter().map(row).collect()).collect()
}

/// The layer after the last one that the query's probe measures; 0 where the method does not probe.
pub(super) fn probed_layers(method: &Method, layers: usize) -> std::ops::Range<usize> {
    match method {
        Method::InfoFlow(flow) => flow.layers.0..flow.layers.1,
        Method::ProphetKv { .. } | Method::Relay { .. } => 0..layers,
        _ => 0..0,
    }
}

/// Whether chunks are put into another order first.
pub(super) fn reorders(plan: &Plan) -> bool {
    plan.reorder.is_some() && plan.chunks.len() > 1 && plan.method.probes_query()
}
