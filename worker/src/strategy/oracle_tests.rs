//! The oracle's numbers against the formula, written out on one rank: all rows of a full prefill,
//! then the query's rows over the cache.

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Reduce};
use tributary_model::Progress;
use tributary_protocol::{Exchange, Layout, Plan};

use super::{chunks, oracle};
use crate::chunk_cache::ChunkCache;
use crate::context::Context;
use crate::kit;
use crate::placement::Placement;

fn plan(world: usize, exchange: Exchange) -> Plan {
    Plan { method: kit::method("ideal"), budget: 6, exchange, ..kit::plan(2, &[9, 1, 12, 8], 3, world) }
}

fn on_ranks<T: Send>(plan: &Plan, world: usize, work: impl Fn(&mut Context<'_>) -> T + Sync) -> Vec<T> {
    let model = kit::model(&kit::config());
    kit::on_ranks(world, |comm| {
        let (mut cache, progress) = (ChunkCache::none(), Progress::default());
        let mut cx = Context::new(&*model, comm, Kernels::Auto, (plan, 64), &progress, &mut cache).expect("a context");
        work(&mut cx)
    })
}

/// For each layer and context row: the mean attention of the query's rows to it, and its values.
/// `seen` are keys and values present in each layer, and their rows. `rows`, of which the query's
/// are the last, are computed and see each other too.
fn taken(
    cx: &Context<'_>,
    plan: &Plan,
    placement: &Placement,
    (seen, seen_rows): (&[(Tensor, Tensor)], &[u32]),
    rows: &[u32],
) -> Vec<Vec<(f32, Vec<f32>)>> {
    let (model, math, query) = (cx.models.main, &cx.math, plan.query_tokens());
    let sources = plan.sources();
    let of: Vec<_> = rows.iter().map(|&row| sources[row as usize]).collect();
    let mut hidden = cx.embed(&of).expect("embedded");
    let at = placement.at(rows);
    let last: Vec<u32> = rows[rows.len() - query..].to_vec();
    let numbers = |x: &Tensor| x.flatten_from(1).and_then(|x| x.to_vec2::<f32>()).expect("f32");
    let mut layers = Vec::new();
    for layer in 0..model.config().layers {
        let qkv = model.qkv(layer, &hidden).expect("a layer");
        let mut keys = vec![Keys { k: qkv.k.clone(), v: qkv.v.clone(), at: at.clone() }];
        let (mut all_rows, mut values) = (rows.to_vec(), numbers(&qkv.v));
        if let Some((k, v)) = seen.get(layer) {
            keys.push(Keys { k: k.clone(), v: v.clone(), at: placement.at(seen_rows) });
            all_rows.extend(seen_rows);
            values.extend(numbers(v));
        }
        let part = math.layer(layer).attend(&qkv.q, &at, &keys).expect("attention");
        let from = rows.len() - query;
        let (q, lse) = (qkv.q.narrow(0, from, query).expect("rows"), part.lse.narrow(0, from, query).expect("rows"));
        let paid = math.layer(layer).scores(&q, &placement.at(&last), &keys, &lse, Reduce::Mass).expect("scores");
        let paid: Vec<f32> = paid.to_vec1().expect("f32");
        let context = plan.prefix_tokens() as u32..plan.query_rows().start;
        let of_row = |row: u32| {
            let place = all_rows.iter().position(|&other| other == row).expect("the row is there");
            (paid[place] / query as f32, values[place].clone())
        };
        layers.push(context.map(of_row).collect());
        hidden = model.finish(layer, hidden, part).expect("a layer");
    }
    layers
}

/// The formula of docs/methods.md.
fn expected(plan: &Plan, order: &[u32]) -> Vec<f32> {
    let mut found = on_ranks(plan, 1, |cx| {
        let (cache, _) = chunks::prefill(cx, plan).expect("chunks").receive(cx, plan).expect("received");
        let placement = Placement::new(plan, order, Layout::Global);
        let all: Vec<u32> = (0..plan.total_rows() as u32).collect();
        let fresh = taken(cx, plan, &placement, (&[], &[]), &all);
        let blocks: Vec<_> = std::iter::once(&cache.prefix).chain(&cache.own).collect();
        let joined = |layer: usize| {
            let of = |pick: fn(&(Tensor, Tensor)) -> &Tensor| {
                let parts: Vec<&Tensor> = blocks.iter().map(|block| pick(block.layer(layer))).collect();
                Tensor::cat(&parts, 0).expect("rows")
            };
            (of(|pair| &pair.0), of(|pair| &pair.1))
        };
        let there: Vec<_> = (0..cx.models.main.config().layers).map(joined).collect();
        let rows: Vec<u32> = blocks.iter().flat_map(|block| block.rows().to_vec()).collect();
        let query: Vec<u32> = plan.query_rows().collect();
        let stale = taken(cx, plan, &placement, (&there, &rows), &query);
        let mut scores = vec![0.0; plan.context_rows()];
        for (fresh, stale) in fresh.iter().zip(&stale) {
            for (score, ((paid, v), (paid_before, before))) in scores.iter_mut().zip(fresh.iter().zip(stale)) {
                let apart = v.iter().zip(before).map(|(v, before)| (paid * v - paid_before * before).powi(2));
                *score += apart.sum::<f32>().sqrt() / there.len() as f32;
            }
        }
        scores
    });
    found.swap_remove(0)
}

#[test]
fn a_rows_number_is_how_much_what_the_query_takes_from_it_changes() {
    let mut largest: f32 = 0.0;
    for order in [[0, 1, 2, 3], [2, 0, 3, 1]] {
        let wanted = expected(&plan(1, Exchange::PassQ), &order);
        assert!(wanted.iter().filter(|&&score| score > 1e-4).count() > 10, "reuse changes something: {wanted:?}");
        for world in 1..=4 {
            for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
                let plan = plan(world, exchange);
                let found = on_ranks(&plan, world, |cx| {
                    let mut chunks = chunks::prefill(cx, &plan).expect("chunks");
                    let evidence = plan.method.evidence().expect("it asks the query");
                    let found = oracle::differences(cx, &plan, &mut chunks, evidence, &order).expect("measured");
                    chunks.receive(cx, &plan).expect("received");
                    found
                });
                for (row, (found, wanted)) in found.iter().flat_map(|found| found.iter().zip(&wanted).enumerate()) {
                    let error = (found - wanted).abs() / wanted.max(1e-3);
                    largest = largest.max(error);
                    assert!(error < 1e-3, "{exchange:?}, world {world}, {order:?}, row {row}: {found}, not {wanted}");
                }
            }
        }
    }
    println!("largest error {largest:e}");
}
