//! The second half of invariant 5: for every selection, reordering and recompute, no stored byte
//! changes.

use candle_core::Tensor;
use tributary_kernels::Kernels;
use tributary_methods::{METHODS, REORDER};
use tributary_model::{Model, Progress};
use tributary_protocol::{Exchange, Importance, Layout, Plan, PlannedMethod};

use super::chunks::Chunks;
use super::selective::{Selective, reorder};
use super::{chunks, recompute};
use crate::chunk_cache::ChunkCache;
use crate::context::Context;
use crate::kit;
use crate::kv::{Block, KvCache};
use crate::placement::Placement;

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Every sample of the methods that select a share of the rows with nothing but the model.
fn methods() -> impl Iterator<Item = (&'static str, PlannedMethod)> {
    let selective = METHODS.into_iter().filter(|method| method.ratio.is_some() && method.requires.is_none());
    selective.flat_map(|method| method.samples).map(|&spec| (spec, kit::method(spec)))
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32");
    values.into_iter().map(f32::to_bits).collect()
}

/// Rows and every layer's key and value bits of all blocks that recompute must leave alone.
fn stored(cache: &KvCache) -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let blocks = std::iter::once(&cache.prefix).chain(&cache.own).chain(&cache.others);
    let of = |block: &Block| {
        let layers = block.layers.iter().flat_map(|(k, v)| [bits(k), bits(v)]).collect();
        (block.rows().to_vec(), layers)
    };
    blocks.map(of).collect()
}

/// Runs the pipeline by hand; returns the order that was found and whether some fresh row differs
/// from the stale one.
fn check(model: &dyn Model, cx: &mut Context<'_>, plan: &Plan) -> (Vec<u32>, bool) {
    let chunks = chunks::prefill(cx, plan).expect("chunks are prefilled");
    let (cache, arrivals) = chunks.receive(cx, plan).expect("chunks are received");
    let before = stored(&cache);
    let rows: usize = before.iter().map(|(rows, _)| rows.len()).sum();
    let (own, all) = (plan.kept_by(cx.rank()).len(), plan.context_rows());
    let replicated = plan.replicates_stale();
    assert_eq!(rows, plan.prefix_tokens() + if replicated { all } else { own });
    assert!(
        before.iter().all(|(_, layers)| layers.len() == 2 * model.config().layers),
        "every layer left keys and values"
    );

    let mut chunks = Chunks { cache, replication: None, arrivals };
    let order = reorder(cx, plan, &mut chunks).expect("reordered");
    let selector = plan.method.selector().expect("a selector");
    let selection = Selective { selector }.select(cx, plan, &mut chunks, (order, Vec::new())).expect("selected");
    let order = selection.order;
    let (mut cache, mut arrivals) = (chunks.cache, chunks.arrivals);
    assert_eq!(selection.rows.len(), plan.budget);
    let placement = Placement::new(plan, &order, Layout::Global);
    let filled = (&mut cache, &mut arrivals);
    recompute::recompute(cx, plan, filled, (&placement, None), &selection.rows).expect("recomputed");
    assert!(stored(&cache) == before, "a stored byte changed: {:?} on rank {}", plan.method, cx.rank());
    (order, fresh_differs(&cache))
}

fn fresh_differs(cache: &KvCache) -> bool {
    let last = |block: &Block, row: u32| -> Option<Vec<u32>> {
        let place = block.rows().iter().position(|&other| other == row)?;
        Some(bits(&block.layers.last()?.0.narrow(0, place, 1).expect("a row")))
    };
    let stale = |row| cache.own.iter().chain(&cache.others).find_map(|block| last(block, row));
    cache
        .fresh
        .iter()
        .flat_map(|block| block.rows().iter().map(move |&row| (block, row)))
        .any(|(block, row)| stale(row).is_some_and(|stale| last(block, row) != Some(stale)))
}

#[test]
fn recompute_is_an_overlay() {
    let model = kit::model(&kit::config());
    for world in [1, 2] {
        for exchange in EXCHANGES {
            for (spec, method) in methods() {
                let mut plan = kit::plan(2, &[9, 14, 5, 11, 20], 4, world);
                plan.budget = 12;
                plan.reorder = method.takes(&REORDER).then_some(Importance::Mass);
                (plan.method, plan.exchange) = (method, exchange);
                let what = format!("{spec}, {}, world {world}", plan.exchange.name());
                let differs = kit::on_ranks(world, |comm| {
                    let mut chunk_cache = ChunkCache::none();
                    let mut cx = Context::new(
                        &*model,
                        comm,
                        Kernels::Auto,
                        (&plan, 128),
                        &Progress::default(),
                        &mut chunk_cache,
                    )
                    .expect("a context");
                    let (order, differs) = check(&*model, &mut cx, &plan);
                    let moved = order != [0, 1, 2, 3, 4];
                    assert!(moved || plan.reorder.is_none(), "{what}: the chunks did not move");
                    differs
                });
                assert!(differs.contains(&true), "recompute changed nothing at all: {what}");
            }
        }
    }
}
