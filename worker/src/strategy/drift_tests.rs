//! Drift against other ways to the same numbers. In the first measured layer rows equal those of a
//! full prefill; in later ones those of a recompute of the rows that went on.

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Reduce};
use tributary_methods::top_rows;
use tributary_model::Progress;
use tributary_protocol::{Drift, DriftOf, DriftScore, Exchange, Layout, Plan};

use super::candidates::candidates;
use super::full::Full;
use super::{Strategy, chunks, drift, recompute};
use crate::chunk_cache::ChunkCache;
use crate::context::Context;
use crate::kit;
use crate::kv::Block;
use crate::placement::Placement;

const LAYERS: usize = 3;

fn plan(world: usize, drift: Drift, exchange: Exchange) -> Plan {
    Plan { method: kit::drifting(drift), budget: 6, exchange, ..kit::plan(2, &[9, 1, 12, 8], 3, world) }
}

fn on_ranks<T: Send>(plan: &Plan, world: usize, work: impl Fn(&mut Context<'_>) -> T + Sync) -> Vec<T> {
    let model = kit::model(&kit::config());
    kit::on_ranks(world, |comm| {
        let (mut cache, progress) = (ChunkCache::none(), Progress::default());
        let mut cx = Context::new(&*model, comm, Kernels::Auto, (plan, 64), &progress, &mut cache).expect("a context");
        work(&mut cx)
    })
}

/// The numbers of `rows` in a layer, of the blocks that have them: values or keys.
fn numbers(blocks: &[Block], layer: usize, rows: &[u32], of: DriftOf) -> Vec<Vec<f32>> {
    let of_row = |row: &u32| {
        let find = |block: &Block| -> Option<Tensor> {
            let place = block.rows().iter().position(|other| other == row)?;
            let (k, v) = &block.layers[layer];
            let numbers = if of == DriftOf::Keys { k } else { v };
            Some(numbers.narrow(0, place, 1).expect("a row"))
        };
        let row = blocks.iter().find_map(find).expect("a block has the row");
        row.flatten_all().and_then(|row| row.to_vec1()).expect("f32")
    };
    rows.iter().map(of_row).collect()
}

fn distances(new: &[Vec<f32>], old: &[Vec<f32>]) -> Vec<f32> {
    let of = |(new, old): (&Vec<f32>, &Vec<f32>)| new.iter().zip(old).map(|(a, b)| (a - b) * (a - b)).sum();
    new.iter().zip(old).map(of).collect()
}

/// The drift of the candidates by other means, on one rank, layer by layer, and the rows that went
/// on.
fn expected(drift: Drift) -> (Vec<f32>, Vec<Vec<u32>>) {
    let plan = plan(1, drift, Exchange::PassQ);
    let order = plan.request_order();
    let mut all = plan.candidate_rows(&order);
    let mut went_on: Vec<Vec<u32>> = Vec::new();
    let mut scores = vec![0.0; plan.context_rows()];
    let first = plan.prefix_tokens();
    for (layer, left) in drift.left(plan.budget).into_iter().enumerate().map(|(i, left)| (i + 1, left)) {
        let (rows, stayed) = (&all, went_on.last().cloned());
        let mut found = on_ranks(&plan, 1, |cx| {
            let (cache, mut arrivals) =
                chunks::prefill(cx, &plan).expect("chunks").receive(cx, &plan).expect("received");
            let old = numbers(&cache.own, layer, rows, drift.of);
            let new = match &stayed {
                None => {
                    let whole = Plan { method: kit::method("full"), ..plan.clone() };
                    let full = Full.prefill(cx, &whole).expect("a full prefill");
                    numbers(&full.cache.own, layer, rows, drift.of)
                }
                Some(stayed) => {
                    let placement = Placement::new(&plan, &plan.request_order(), Layout::Global);
                    let mut cache = cache;
                    let filled = (&mut cache, &mut arrivals);
                    recompute::recompute(cx, &plan, filled, (&placement, None), stayed).expect("recomputed");
                    numbers(&cache.fresh, layer, rows, drift.of)
                }
            };
            distances(&new, &old)
        });
        scores = vec![0.0; plan.context_rows()];
        for (&row, distance) in all.iter().zip(found.swap_remove(0)) {
            scores[row as usize - first] = distance;
        }
        all = top_rows(&all, |row| scores[row as usize - first], left);
        went_on.push(all.clone());
    }
    went_on.pop(); // those are what is selected
    (scores, went_on)
}

/// The measurements of every rank.
fn measured(plan: &Plan, world: usize, drift: Drift) -> Vec<(Vec<f32>, Vec<u32>)> {
    let order = plan.request_order();
    on_ranks(plan, world, |cx| {
        let mut chunks = chunks::prefill(cx, plan).expect("chunks");
        let candidates = candidates(plan, &order, Vec::new());
        let measured = drift::measure(cx, plan, &mut chunks, &candidates, &order, drift).expect("measured");
        chunks.receive(cx, plan).expect("received");
        measured
    })
}

#[test]
fn drift_is_what_a_full_prefill_and_a_recompute_leave() {
    let mut largest: f32 = 0.0;
    for drift in [DriftOf::Values, DriftOf::Keys]
        .into_iter()
        .flat_map(|of| [1, 2].map(|layers| Drift { of, layers, ..Drift::default() }))
    {
        assert!(drift.layers < LAYERS);
        let (wanted, went_on) = expected(drift);
        assert_eq!(went_on.len(), drift.layers - 1);
        assert!(wanted.iter().any(|&distance| distance > 1e-4), "{drift:?}: something drifts: {wanted:?}");
        for world in 1..=4 {
            for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
                for (scores, measured) in measured(&plan(world, drift, exchange), world, drift) {
                    let what = format!("{drift:?}, {exchange:?}, world {world}");
                    assert_eq!(measured, Drift::longest_first(&went_on), "{what}: the rows that went on");
                    for (row, (found, wanted)) in scores.iter().zip(&wanted).enumerate() {
                        let error = (found - wanted).abs() / wanted.max(1.0);
                        largest = largest.max(error);
                        assert!(error < 1e-5, "{what}, row {row}: {found}, not {wanted}");
                    }
                }
            }
        }
    }
    println!("largest error {largest:e}");
}

/// In the second layer of a full prefill: the attention of all context rows to each context row,
/// mean over heads, times the absolute difference of its values from those of its chunk alone.
fn attended(plan: &Plan) -> Vec<f32> {
    let mut found = on_ranks(plan, 1, |cx| {
        let (cache, _) = chunks::prefill(cx, plan).expect("chunks").receive(cx, plan).expect("received");
        let (first, context) = (plan.prefix_tokens(), plan.context_rows());
        let rows: Vec<u32> = (first as u32..(first + context) as u32).collect();
        let old = numbers(&cache.own, 1, &rows, DriftOf::Values);
        let all: Vec<u32> = (0..(first + context) as u32).collect();
        let at = Placement::new(plan, &plan.request_order(), Layout::Global).at(&all);
        let (model, math) = (cx.models.main, cx.math.clone());
        let hidden = cx.embed(&plan.sources()[..all.len()]).expect("embedded");
        let qkv = model.qkv(0, &hidden).expect("the first layer");
        let keys = |k: &Tensor, v: &Tensor| [Keys { k: k.clone(), v: v.clone(), at: at.clone() }];
        let seen = math.layer(0).attend(&qkv.q, &at, &keys(&qkv.k, &qkv.v)).expect("attention");
        let hidden = model.finish(0, hidden, seen).expect("the first layer");
        let qkv = model.qkv(1, &hidden).expect("the second layer");
        let keys = keys(&qkv.k, &qkv.v);
        let lse = math.layer(1).attend(&qkv.q, &at, &keys).expect("attention").lse;
        let from_context: Vec<f32> = all.iter().map(|&row| f32::from(u8::from(row as usize >= first))).collect();
        let paid = math.layer(1).scores(&qkv.q, &at, &keys, &lse, Reduce::Weighted(&from_context)).expect("scores");
        let paid: Vec<f32> = paid.to_vec1().expect("f32");
        let new = qkv.v.narrow(0, first, context).and_then(|v| v.flatten_from(1)).and_then(|v| v.to_vec2::<f32>());
        let distance =
            |(new, old): (&Vec<f32>, &Vec<f32>)| new.iter().zip(old).map(|(a, b)| (a - b).abs()).sum::<f32>();
        let distances = new.expect("f32").iter().zip(&old).map(distance).collect::<Vec<f32>>();
        distances.iter().zip(&paid[first..]).map(|(distance, paid)| distance * paid).collect::<Vec<f32>>()
    });
    found.swap_remove(0)
}

#[test]
fn kvshare_weighs_drift_with_what_the_context_pays() {
    let drift = Drift { score: DriftScore::Attended, ..Drift::default() };
    let of = |world, exchange| Plan { method: kit::method("kvshare"), ..plan(world, drift, exchange) };
    let mut wanted = attended(&of(1, Exchange::PassQ));
    let candidates = of(1, Exchange::PassQ).candidate_rows(&of(1, Exchange::PassQ).request_order());
    let first = of(1, Exchange::PassQ).prefix_tokens();
    for (index, wanted) in wanted.iter_mut().enumerate() {
        *wanted *= f32::from(u8::from(candidates.contains(&((first + index) as u32))));
    }
    assert!(wanted.iter().any(|&score| score > 1e-3), "something drifts: {wanted:?}");
    for world in 1..=4 {
        for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
            for (scores, rows) in measured(&of(world, exchange), world, drift) {
                assert!(rows.is_empty(), "one layer is measured");
                for (row, (found, wanted)) in scores.iter().zip(&wanted).enumerate() {
                    let error = (found - wanted).abs() / wanted.max(1.0);
                    assert!(error < 1e-5, "{exchange:?}, world {world}, row {row}: {found}, not {wanted}");
                }
            }
        }
    }
}
