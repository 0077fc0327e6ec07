//! Drift against other ways to the same numbers: in the first layer behind the first one rows are what a full prefill makes of them; in
//! later ones what a recompute makes of those that went on.

use candle_core::Tensor;
use tributary_kernels::Kernels;
use tributary_protocol::{Drift, DriftOf, Exchange, Layout, Method, Plan};

use super::full::Full;
use super::{Strategy, chunks, drift, recompute};
use crate::chunk_cache::ChunkCache;
use crate::context::Context;
use crate::kit;
use crate::kv::Block;
use crate::placement::Placement;
use crate::progress::Progress;
use crate::select::{Candidates, top_rows};

const LAYERS: usize = 3;

fn plan(world: usize, drift: Drift, exchange: Exchange) -> Plan {
    Plan { method: Method::CacheBlend(drift), budget: 6, exchange, ..kit::plan(2, &[9, 1, 12, 8], 3, world) }
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

/// The drift of the candidates by other means, on one rank, layer by layer; and which of them went on.
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
                    let whole = Plan { method: Method::Full, ..plan.clone() };
                    let full = Full.prefill(cx, &whole).expect("a full prefill");
                    numbers(&full.cache.own, layer, rows, drift.of)
                }
                Some(stayed) => {
                    let placement = Placement::new(&plan, &plan.request_order(), Layout::Global);
                    let mut cache = cache;
                    let filled = (&mut cache, &mut arrivals);
                    recompute::recompute(cx, &plan, filled, &placement, stayed).expect("recomputed");
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

#[test]
fn drift_is_what_a_full_prefill_and_a_recompute_leave() {
    let mut largest: f32 = 0.0;
    for drift in [DriftOf::Values, DriftOf::Keys].into_iter().flat_map(|of| [1, 2].map(|layers| Drift { of, layers })) {
        assert!(drift.layers < LAYERS);
        let (wanted, went_on) = expected(drift);
        assert_eq!(went_on.len(), drift.layers - 1);
        assert!(wanted.iter().any(|&distance| distance > 1e-4), "{drift:?}: something drifts: {wanted:?}");
        for world in 1..=4 {
            for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
                let plan = plan(world, drift, exchange);
                let order = plan.request_order();
                let found = on_ranks(&plan, world, |cx| {
                    let mut chunks = chunks::prefill(cx, &plan).expect("chunks");
                    let candidates = Candidates::new(&plan, &order);
                    let measured =
                        drift::measure(cx, &plan, &mut chunks, &candidates, &order, drift).expect("measured");
                    chunks.receive(cx, &plan).expect("received");
                    measured
                });
                for (scores, measured) in found {
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
