//! The recompute pass: selected rows from their token ids, through all layers, at their global positions, and the query's
//! rows behind them.

use tributary_protocol::deal::{RowCost, deal_rows};
use tributary_protocol::{Exchange, Plan};

use crate::attention::{Homes, PassQ, Replicated, SelectedOnly};
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Hidden, KvCache};
use crate::model::{Config, Rows};
use crate::placement::Placement;

/// Recomputes `selected`; fresh rows and the query's join the cache. The last query row on the last rank.
///
/// # Errors
/// Kernels' and communicator's.
pub(super) fn recompute(
    cx: &mut Context<'_>,
    plan: &Plan,
    cache: &mut KvCache,
    placement: &Placement,
    selected: &[u32],
) -> Result<Option<Rows>> {
    let homes = match plan.exchange {
        Exchange::Selected => stay(cx, plan, placement, selected),
        Exchange::Replicate | Exchange::PassQ => deal(cx, plan, placement, selected, query_rows(plan), plan.exchange),
    };
    let dealt = homes.context_counts();
    assert_eq!(dealt.len(), cx.comm.size(), "ranks that rows are dealt to");
    assert_eq!(dealt.iter().sum::<usize>(), selected.len(), "selected rows, dealt as {dealt:?}");
    let rows = embed(cx, plan, &homes)?;
    cx.recomputed_rows = rows.len();
    let hidden = Hidden::of(selected);
    let math = cx.math.clone();
    let (last, (fresh, tail)) = match plan.exchange {
        Exchange::Replicate => {
            let mut pass = Replicated::new(math, &mut *cx.comm, &homes, cache, placement, &hidden);
            (cx.model.prompt(rows, &mut pass)?, pass.into_blocks())
        }
        Exchange::PassQ => {
            let ranks = rank_of(plan);
            let rank_of = |row: u32| ranks[row as usize];
            let mut pass = PassQ::new(math, &mut *cx.comm, &homes, cache, placement, &hidden, &rank_of);
            (cx.model.prompt(rows, &mut pass)?, pass.into_blocks())
        }
        Exchange::Selected => {
            let mut pass = SelectedOnly::new(math, &mut *cx.comm, &homes, cache, placement, &hidden);
            (cx.model.prompt(rows, &mut pass)?, pass.into_blocks())
        }
    };
    let layers = cx.model.config().layers;
    cache.fresh = vec![fresh.complete(layers)];
    cache.tail = tail.complete(layers);
    Ok((cx.rank() == cx.last_rank()).then_some(last))
}

/// This rank's rows of a pass, embedded.
pub(super) fn embed(cx: &Context<'_>, plan: &Plan, homes: &Homes) -> Result<Rows> {
    let ids = plan.all_ids();
    let own: Vec<u32> = homes.of(cx.rank()).iter().map(|&row| ids[row as usize]).collect();
    cx.model.embed(&own)
}

/// The rank of each row's chunk, for every row of prefix and context.
pub(super) fn rank_of(plan: &Plan) -> Vec<usize> {
    let prefix = std::iter::repeat_n(0, plan.prefix_tokens());
    let context = plan.chunks.iter().flat_map(|chunk| std::iter::repeat_n(chunk.rank, chunk.ids.len()));
    prefix.chain(context).collect()
}

/// Deals selected rows evenly by cost, whoever keeps their chunk; `query` rows ride on the last rank. Under `pass-q` a row's
/// attention is done where the keys are, so only its own arithmetic counts.
pub(super) fn deal(
    cx: &Context<'_>,
    plan: &Plan,
    placement: &Placement,
    selected: &[u32],
    query: Vec<u32>,
    exchange: Exchange,
) -> Homes {
    let cost = row_cost(cx.model.config());
    let cost = match exchange {
        Exchange::Replicate => cost,
        Exchange::PassQ | Exchange::Selected => RowCost { key: 0.0, ..cost },
    };
    let rows: Vec<(u32, u32)> =
        in_causal_order(selected, placement).into_iter().map(|row| (row, placement.order_of(row))).collect();
    let total = plan.total_tokens() as u32;
    Homes { context: deal_rows(&rows, cx.comm.size(), query.len(), total, cost), query }
}

/// Leaves selected rows on the rank of their chunk.
fn stay(cx: &Context<'_>, plan: &Plan, placement: &Placement, selected: &[u32]) -> Homes {
    let ranks = rank_of(plan);
    let mut context = vec![Vec::new(); cx.comm.size()];
    for row in in_causal_order(selected, placement) {
        context[ranks[row as usize]].push(row);
    }
    Homes { context, query: query_rows(plan) }
}

fn in_causal_order(rows: &[u32], placement: &Placement) -> Vec<u32> {
    let mut rows = rows.to_vec();
    rows.sort_by_key(|&row| placement.order_of(row));
    rows
}

fn query_rows(plan: &Plan) -> Vec<u32> {
    let first = (plan.prefix_tokens() + plan.context_tokens()) as u32;
    (first..plan.total_tokens() as u32).collect()
}

/// FLOPs of a row and of a row and key in one layer.
fn row_cost(config: &Config) -> RowCost {
    let (query_width, kv_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    RowCost::of_decoder(config.hidden, query_width, kv_width, config.intermediate)
}
