//! Pictures in tiles, each a chunk, against what was recorded of two tiny models by an independent
//! implementation in f64 (`golden/pictures_selective.py`). In the causal order of the uncut picture
//! every method that is exact gives the logits of the uncut prompt, and warm tiles are as cold
//! ones; tile after tile it is another prompt.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use candle_core::DType;
use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_planner::cost::{RankWork, Selected, Work, bytes, work as work_of};
use tributary_protocol::tile::TileOrder;
use tributary_protocol::{Exchange, Importance, Outcome, Phase, Pixels, Plan, RankReport};
use tributary_tests::equal::assert_same_bits;
use tributary_tests::samples::{Sample, specs};
use tributary_tests::{group, kept, logits, open_store, relative_error, run_all, run_one, shape, stored_group, warm};

use crate::recorded::{EXCHANGES, RECORDED, Recorded, reads_pictures, whole};

/// The full prefill of a prompt whose chunks stand in this order.
fn full_of_moved(of: &Recorded, order: &[u32]) -> Vec<f32> {
    let chunks = order.iter().map(|&chunk| of.chunks[chunk as usize].clone()).collect();
    let moved = Recorded { chunks, ..of.clone() };
    let (found, _) = run_all(&of.model, Kernels::Auto, 1, &[moved.plan("full", 1, Exchange::PassQ)]).swap_remove(0);
    logits(&found).to_vec()
}

/// Runs every exact sample on 1 to 4 ranks, and returns the number of answers in another order of
/// chunks.
fn exact_methods_are_exact(of: &Recorded, what: &str) -> usize {
    let (lengths, full) = (of.lengths(), of.recorded("logits.full"));
    let (model_shape, mut moved) = (shape(&*of.model, DType::F32), 0);
    for world in 1..=4 {
        for exchange in EXCHANGES {
            let samples = of.case(&lengths, world, exchange).exact(&*of.model).into_iter();
            let samples: Vec<Sample> = samples
                .map(|sample| Sample { plan: of.told(sample.plan), ..sample })
                .filter(|sample| reads_pictures(&sample.plan))
                .filter(|sample| exchange != Exchange::Selected || sample.plan.is_exact())
                .collect();
            assert!(samples.len() > 4, "{} samples", samples.len());
            let plans: Vec<Plan> = samples.iter().map(|sample| sample.plan.clone()).collect();
            let runs = run_all(&of.model, Kernels::Auto, world, &plans);
            for ((found, reports), Sample { plan, spec }) in runs.iter().zip(&samples) {
                let what = format!("{what} {spec} {exchange:?}, world {world}");
                let formula = bytes::received(plan, world, &model_shape, &Selected::from(found));
                let counted: Vec<u64> = reports.iter().map(|report| report.traffic.tensor_bytes_received()).collect();
                assert_eq!(formula, counted, "{what}");
                let in_order = found.order == plan.request_order();
                moved += usize::from(!in_order);
                let wanted = if in_order { full.clone() } else { full_of_moved(of, &found.order) };
                let error = relative_error(logits(found), &wanted);
                assert!(error < 1e-4, "{what}: {error:.1e}");
            }
        }
    }
    moved
}

#[test]
fn a_picture_in_tiles_is_exact_where_every_row_is_computed_anew() {
    for name in RECORDED {
        assert_eq!(exact_methods_are_exact(&Recorded::tiles(name, TileOrder::Raster), name), 0, "one picture");
    }
}

#[test]
fn pictures_in_tiles_among_texts_are_exact_and_move_as_one() {
    for (name, grid) in RECORDED.into_iter().zip([3, 2]) {
        let of = Recorded::new(name).cut(grid);
        assert!(of.chunks.len() > 9, "{} chunks", of.chunks.len());
        let moved = exact_methods_are_exact(&of, &format!("{name} {grid} x {grid}"));
        assert!(moved > 4, "{moved} answers with moved chunks");
    }
}

#[test]
fn tiles_of_one_row_each_are_exact() {
    for name in RECORDED {
        let of = Recorded::new(name).cut(8);
        assert!(of.chunks.len() > 40, "{} chunks", of.chunks.len());
        for (world, spec) in
            [(3, "ring"), (2, "full"), (4, "infoflow:ratio=1"), (3, "random:ratio=1"), (2, "relay:ratio=1")]
        {
            let plan = of.plan(spec, world, EXCHANGES[world % 2]);
            let (found, _) = run_all(&of.model, Kernels::Auto, world, &[plan]).swap_remove(0);
            let error = relative_error(logits(&found), &of.recorded("logits.full"));
            assert!(error < 1e-4, "{name} {spec}, world {world}: {error:.1e}");
        }
    }
}

#[test]
fn what_is_selected_of_tiles_and_answered_is_what_was_recorded() {
    for (name, order) in RECORDED.into_iter().flat_map(|name| [TileOrder::Raster, TileOrder::Tile].map(|of| (name, of)))
    {
        let of = Recorded::tiles(name, order);
        let (kind, full) = (if order == TileOrder::Raster { "raster" } else { "tiles" }, of.recorded("logits.full"));
        for (ratio, exchange) in [("0", 0), ("0.15", 0), ("0.15", 1), ("1", 0), ("1", 1)] {
            let answer = of.recorded(&format!("{kind}.logits.{ratio}"));
            for world in 1..=4 {
                let spec = if ratio == "0" { "none".to_owned() } else { format!("infoflow:ratio={ratio}") };
                let plan = of.plan(&spec, world, EXCHANGES[exchange]);
                let (found, _) = run_all(&of.model, Kernels::Auto, world, &[plan]).swap_remove(0);
                let what = format!("{name} {kind} {spec}, {:?}, world {world}", EXCHANGES[exchange]);
                if ratio == "0.15" {
                    assert_eq!(found.selected, whole(&of.tensors[&format!("{kind}.selected")]), "{what}");
                    let scores = found.scores.as_ref().expect("scores");
                    let error = relative_error(scores, &of.recorded(&format!("{kind}.scores")));
                    assert!(error < 1e-4, "{what}: scores {error:.1e}");
                }
                let error = relative_error(logits(&found), &answer);
                assert!(error < 1e-4, "{what}: {error:.1e}");
                // Tile after tile, rows at the right see rows of a later line at the left.
                let off = relative_error(logits(&found), &full);
                let is_full = ratio == "1" && order == TileOrder::Raster;
                assert_eq!(off < 1e-4, is_full, "{what}: {off:.1e} off the uncut prompt");
                assert!(is_full || off > 0.01, "{what}: {off:.1e} off the uncut prompt");
            }
        }
        // Alone in its prompt a picture stands in the same place in every layout.
        for (world, layout) in (1..=4).zip(["global", "hl-hp", "hl-tp", "tl-tp"]) {
            let plan = of.plan(&format!("infoflow:ratio=0.15:layout={layout}"), world, EXCHANGES[world % 2]);
            let (found, _) = run_all(&of.model, Kernels::Auto, world, &[plan]).swap_remove(0);
            let selected = whole(&of.tensors[&format!("{kind}.selected")]);
            assert_eq!(found.selected, selected, "{name} {kind} {layout}, world {world}");
        }
        for (world, spec) in [(1, "full"), (3, "ring"), (2, "all-gather"), (4, "pass-q")] {
            let (found, _) =
                run_all(&of.model, Kernels::Auto, world, &[of.plan(spec, world, Exchange::PassQ)]).swap_remove(0);
            let error = relative_error(logits(&found), &full);
            assert!(error < 1e-4, "{name} {kind} {spec}: {error:.1e}: the prompt is whole, and so are its pictures");
        }
    }
}

#[test]
fn a_reorder_leaves_the_tiles_of_a_picture_together() {
    for name in RECORDED {
        let of = Recorded::new(name).cut(2);
        let mut orders = Vec::new();
        for (world, importance) in [(1, Importance::Mass), (3, Importance::Mass), (2, Importance::Selected)] {
            let plan = of.plan("infoflow:ratio=0.15", world, EXCHANGES[world % 2]);
            let plan = Plan { reorder: Some(importance), ..plan };
            let groups = plan.groups();
            assert_eq!((groups.len(), plan.chunks.len()), (5, of.chunks.len()), "texts and pictures");
            let (found, _) = run_all(&of.model, Kernels::Auto, world, &[plan]).swap_remove(0);
            let mut left = &found.order[..];
            while let Some(&first) = left.first() {
                let group = groups.iter().find(|group| group.start == first as usize).expect("the first of a group");
                let own: Vec<u32> = group.clone().map(|chunk| chunk as u32).collect();
                assert_eq!(left[..own.len()], own, "{name}: {:?}", found.order);
                left = &left[own.len()..];
            }
            orders.push(found.order);
        }
        assert_eq!(orders[0], orders[1], "{name}");
        assert_ne!(orders[0], (0..of.chunks.len() as u32).collect::<Vec<_>>(), "{name}: something moved");
    }
}

/// The samples that work in chunks, as plans with a scope each.
fn in_chunks(of: &Recorded, world: usize) -> Vec<(&'static str, Plan)> {
    let lengths = of.lengths();
    let case = of.case(&lengths, world, EXCHANGES[world % 3]);
    let plan = |(scope, (_, spec)): (usize, (_, &'static str))| {
        let plan = Plan { scope: Some(scope as u64), ..of.told(case.planned(spec, &*of.model).ok()?) };
        (plan.method.in_chunks() && reads_pictures(&plan)).then_some((spec, plan))
    };
    specs().enumerate().filter_map(plan).collect()
}

#[test]
fn warm_tiles_answer_as_cold_ones_bit_for_bit() {
    let mut compared = 0;
    for (world, name) in (1..=4).zip(RECORDED.into_iter().cycle()) {
        let of = Recorded::new(name).cut(2);
        let ranks = group(&of.model, world);
        for (spec, plan) in in_chunks(&of, world) {
            let mut again = warm(plan.clone());
            // What is cached is found by its key: these pixels are never looked at.
            for picture in again.chunks.iter_mut().flat_map(|chunk| &mut chunk.pictures) {
                picture.pixels = Pixels(vec![0; picture.pixels.0.len()].into());
            }
            let [cold, again] = [kept(plan), again].map(|plan| run_one(&ranks, &plan));
            assert_same_bits(&again.0, &cold.0, &format!("{name} {spec}, world {world}"));
            assert_eq!(hits(&again.1), of.chunks.len(), "{name} {spec}, world {world}");
            compared += 1;
        }
        ranks.end().expect("the group ends well");
    }
    assert!(compared > 30, "{compared} requests");
}

fn hits(reports: &[RankReport]) -> usize {
    reports.iter().map(|report| report.chunk_cache.hits).sum()
}

fn loaded(reports: &[RankReport]) -> usize {
    reports.iter().map(|report| report.chunk_cache.from_store.loaded).sum()
}

/// Runs plans one after the other in a group of its own on this folder, as a process would.
fn in_process(model: &Arc<dyn Model>, folder: &Path, world: usize, plans: &[Plan]) -> Vec<(Outcome, Vec<RankReport>)> {
    let store = open_store(folder);
    let ranks = stored_group(model, world, &store);
    let found = plans.iter().map(|plan| run_one(&ranks, plan)).collect();
    ranks.end().expect("the group ends well");
    assert!(store.flush(Duration::from_secs(60)), "everything is written");
    found
}

#[test]
fn stored_tiles_answer_as_cold_ones_on_any_rank() {
    for (world, name) in [(1, RECORDED[0]), (2, RECORDED[1]), (3, RECORDED[0])] {
        let of = Recorded::new(name).cut(2);
        let folder = tempfile::tempdir().expect("a folder");
        let plans = in_chunks(&of, world);
        let cold: Vec<Plan> = plans.iter().map(|(_, plan)| kept(plan.clone())).collect();
        let first = in_process(&of.model, folder.path(), world, &cold);
        let same: Vec<Plan> = plans.iter().map(|(_, plan)| warm(plan.clone())).collect();
        let elsewhere = same.iter().cloned().map(|mut plan| {
            plan.chunks.iter_mut().for_each(|chunk| chunk.rank = (chunk.rank + 1) % world);
            plan
        });
        let again = in_process(&of.model, folder.path(), world, &same);
        let elsewhere = in_process(&of.model, folder.path(), world, &elsewhere.collect::<Vec<_>>());
        for ((((spec, _), cold), again), elsewhere) in plans.iter().zip(&first).zip(&again).zip(&elsewhere) {
            let what = format!("{name} {spec}, world {world}");
            assert_same_bits(&again.0, &cold.0, &what);
            assert_eq!([&again.1, &elsewhere.1].map(|reports| loaded(reports)), [of.chunks.len(); 2], "{what}");
            // Ranks merge what they have in another order.
            let error = relative_error(logits(&elsewhere.0), logits(&cold.0));
            assert!(error < 1e-4, "{what}, elsewhere: {error:.1e}");
            assert_eq!(elsewhere.0.selected, cold.0.selected, "{what}, elsewhere");
        }
    }
}

#[test]
fn a_tile_is_known_by_its_picture_and_its_place_in_any_causal_order() {
    let name = RECORDED[0];
    let of = Recorded::tiles(name, TileOrder::Raster);
    let ranks = group(&of.model, 2);
    let plan = of.plan("none", 2, Exchange::PassQ);
    run_one(&ranks, &kept(plan.clone()));
    let again = |plan: Plan| hits(&run_one(&ranks, &warm(plan)).1);
    assert_eq!(again(plan.clone()), 4);
    assert_eq!(again(Recorded::tiles(name, TileOrder::Tile).plan("none", 2, Exchange::PassQ)), 4);
    let mut moved = plan.clone();
    moved.chunks.iter_mut().for_each(|chunk| chunk.pictures[0].tile.as_mut().expect("a tile").before += 1);
    moved.chunks[0].ids.insert(0, 7);
    moved.chunks[0].pictures[0].first = 1;
    assert_eq!(again(moved), 0, "behind another token");
    let mut other = plan;
    let mut pixels = other.chunks[0].pictures[0].pixels.0.to_vec();
    pixels[0] ^= 0x80;
    for picture in other.chunks.iter_mut().flat_map(|chunk| &mut chunk.pictures) {
        (picture.hash[0], picture.pixels) = (picture.hash[0] ^ 1, Pixels(pixels.clone().into()));
    }
    assert_eq!(again(other), 0, "another picture");
    ranks.end().expect("the group ends well");
}

#[test]
fn the_planner_counts_a_picture_once_and_each_row_where_it_is() {
    for name in RECORDED {
        let whole = Recorded::new(name);
        let model_shape = shape(&*whole.model, DType::F32);
        for world in 1..=4 {
            for (spec, exchange) in
                [("full", 0), ("ring", 0), ("pass-q", 0), ("infoflow:ratio=1", 0), ("infoflow:ratio=1", 1)]
            {
                let work = |of: &Recorded| -> Work {
                    let plan = Plan { include_first_chunk: true, ..of.plan(spec, world, EXCHANGES[exchange]) };
                    work_of(&plan, world, &model_shape)
                };
                let (uncut, tiles) = (work(&whole), work(&whole.cut(3)));
                let phases =
                    [Phase::Vision, if spec.starts_with("info") { Phase::Recompute } else { Phase::ChunkPrefill }];
                for phase in phases {
                    let total = |work: &Work| -> f64 {
                        work.phase(phase).expect("work").ranks.iter().map(RankWork::flops).sum()
                    };
                    let (uncut, tiles) = (total(&uncut), total(&tiles));
                    let off = (uncut - tiles).abs() / uncut;
                    assert!(off < 1e-9, "{name} {spec} {phase:?}, world {world}: {uncut} and {tiles} FLOPs");
                }
            }
        }
    }
}
