//! Requests with pictures against what was recorded of two tiny models by an independent
//! implementation in f64 (`golden/pictures_selective.py`): every method that reads pictures, in
//! every exchange, on 1 to 4 ranks; warm as cold; one picture is not another of its size.

use candle_core::DType;
use tributary_kernels::Kernels;
use tributary_planner::cost::{Selected, bytes};
use tributary_protocol::{Exchange, Importance, Outcome, Pixels, Plan, Source};
use tributary_tests::equal::assert_same_bits;
use tributary_tests::samples::{Sample, specs};
use tributary_tests::{group, kept, logits, relative_error, run_all, run_one, shape, warm};

use crate::recorded::{EXCHANGES, RECORDED, Recorded, reads_pictures, whole};

#[test]
fn every_method_that_is_exact_gives_the_recorded_logits_and_moves_the_bytes_of_the_formula() {
    for name in RECORDED {
        let of = Recorded::new(name);
        let (lengths, full) = (of.lengths(), of.recorded("logits.full"));
        let (model_shape, mut largest) = (shape(&*of.model, DType::F32), 0f64);
        for world in 1..=4 {
            for exchange in EXCHANGES {
                let samples = of.case(&lengths, world, exchange).exact(&*of.model);
                let samples: Vec<Sample> = samples
                    .into_iter()
                    .filter(|sample| reads_pictures(&sample.plan) && !sample.plan.reorders())
                    .filter(|sample| exchange != Exchange::Selected || sample.plan.is_exact())
                    .collect();
                assert!(samples.len() > 4, "{} samples", samples.len());
                let plans: Vec<Plan> = samples.iter().map(|sample| of.told(sample.plan.clone())).collect();
                let runs = run_all(&of.model, Kernels::Auto, world, &plans);
                for (((found, reports), plan), sample) in runs.iter().zip(&plans).zip(&samples) {
                    let formula = bytes::received(plan, world, &model_shape, &Selected::from(found));
                    let counted: Vec<u64> =
                        reports.iter().map(|report| report.traffic.tensor_bytes_received()).collect();
                    assert_eq!(formula, counted, "{name} {} {exchange:?}, world {world}", sample.spec);
                    if found.order.windows(2).any(|pair| pair[0] > pair[1]) {
                        continue; // it answers another prompt
                    }
                    let error = relative_error(logits(found), &full);
                    largest = largest.max(error);
                    assert!(error < 1e-4, "{name} {} {exchange:?}, world {world}: {error:.1e}", sample.spec);
                }
            }
        }
        println!("{name}: {largest:.1e}");
    }
}

#[test]
fn what_is_selected_and_answered_is_what_was_recorded() {
    for name in RECORDED {
        let of = Recorded::new(name);
        let check = |plan: Plan, [selected, answer]: [&str; 2], what: &str| -> Outcome {
            for world in 1..=4 {
                let mut plan = plan.clone();
                plan.chunks.iter_mut().enumerate().for_each(|(index, chunk)| chunk.rank = index % world);
                plan.owner = world - 1;
                let (found, _) = run_all(&of.model, Kernels::Auto, world, std::slice::from_ref(&plan)).swap_remove(0);
                if !selected.is_empty() {
                    assert_eq!(found.selected, whole(&of.tensors[selected]), "{name}: {what}, world {world}");
                }
                let error = relative_error(logits(&found), &of.recorded(answer));
                assert!(error < 1e-4, "{name}: {what}, world {world}: {error:.1e}");
                if world == 4 {
                    return found;
                }
            }
            unreachable!("the last world returns")
        };
        for exchange in [Exchange::PassQ, Exchange::Replicate] {
            let plan = |spec: &str| of.plan(spec, 1, exchange);
            check(plan("none"), ["", "logits.0"], "none");
            check(plan("infoflow:ratio=0.15"), ["selected", "logits.0.15"], "15 %");
            let first = Plan { include_first_chunk: true, ..plan("infoflow:ratio=0.15") };
            check(first, ["selected.first", "logits.0.15.first"], "15 % with the first chunk");
            let all = Plan { include_first_chunk: true, ..plan("infoflow:ratio=1") };
            check(all, ["", "logits.1"], "all");
            let moved = Plan { reorder: Some(Importance::Mass), ..plan("infoflow:ratio=0.15") };
            let found = check(moved, ["reorder.selected", "reorder.logits.0.15"], "reordered");
            assert_eq!(found.order, whole(&of.tensors["reorder.order"]), "{name}");
        }
        let flat =
            Plan { include_first_chunk: true, ..of.plan("infoflow:ratio=1:picture-rows=flat", 1, Exchange::PassQ) };
        assert!(!flat.is_exact(), "{name}: every row is recomputed, but not as a full prefill does");
        check(flat, ["", "wrong.recompute_without_deepstack.1"], "all, without levels");
        // The wrong ways that were recorded are far from the right ones.
        let right = of.recorded("logits.1");
        for wrong in ["wrong.one_position_a_row", "wrong.recompute_without_deepstack.1"] {
            let error = relative_error(&of.recorded(wrong), &right);
            let has_levels = name == "qwen3vl-tiny" || wrong == "wrong.one_position_a_row";
            assert!(error > 0.01 || !has_levels, "{name}: {wrong} is off by {error:.1e} only");
        }
    }
}

#[test]
fn rows_of_pictures_are_left_out_of_the_selection_on_request() {
    let of = Recorded::new("qwen3vl-tiny");
    let is_of_picture = |plan: &Plan, row: u32| matches!(plan.sources()[row as usize], Source::Picture { .. });
    let selected = |spec: &str| {
        let plan = of.plan(spec, 2, Exchange::Replicate);
        let (found, _) = run_all(&of.model, Kernels::Auto, 2, std::slice::from_ref(&plan)).swap_remove(0);
        let of_pictures = found.selected.iter().filter(|&&row| is_of_picture(&plan, row)).count();
        (found.selected.len(), of_pictures)
    };
    let (all, of_pictures) = selected("infoflow:ratio=0.3");
    assert!(of_pictures > 0 && of_pictures < all, "{of_pictures} of {all}");
    assert_eq!(selected("infoflow:ratio=0.3:picture-rows=never").1, 0);
    // The budget counts all rows; of text there are fewer.
    let (most, of_pictures) = selected("infoflow:ratio=1:picture-rows=never");
    assert!(most > 0 && of_pictures == 0, "{most} rows");
}

#[test]
fn warm_pictures_answer_as_cold_ones_bit_for_bit() {
    let of = Recorded::new("qwen3vl-tiny");
    let lengths = of.lengths();
    let mut compared = 0;
    for world in 1..=3 {
        let ranks = group(&of.model, world);
        let case = of.case(&lengths, world, EXCHANGES[world % 3]);
        for (scope, (_, spec)) in specs().enumerate() {
            let Ok(plan) = case.planned(spec, &*of.model) else { continue };
            if !plan.method.in_chunks() || !reads_pictures(&plan) {
                continue;
            }
            let plan = Plan { scope: Some(scope as u64), ..of.told(plan) };
            let mut again = warm(plan.clone());
            // What is cached is found by its hash: these pixels are never looked at.
            for picture in again.chunks.iter_mut().flat_map(|chunk| &mut chunk.pictures) {
                picture.pixels = Pixels(vec![0; picture.pixels.0.len()].into());
            }
            let [cold, again] = [kept(plan), again].map(|plan| run_one(&ranks, &plan));
            assert_same_bits(&again.0, &cold.0, &format!("{spec}, world {world}"));
            let hits: usize = again.1.iter().map(|report| report.chunk_cache.hits).sum();
            assert_eq!(hits, lengths.len(), "{spec}, world {world}");
            compared += 1;
        }
        ranks.end().expect("the group ends well");
    }
    assert!(compared > 20, "{compared} requests");
}

#[test]
fn another_picture_of_the_same_size_is_another_chunk() {
    let of = Recorded::new("qwen3vl-tiny");
    let ranks = group(&of.model, 2);
    let plan = of.plan("none", 2, Exchange::PassQ);
    let mut other = plan.clone();
    let changed = &mut other.chunks[1].pictures[0];
    let mut pixels = changed.pixels.0.to_vec();
    pixels[0] ^= 0x80;
    (changed.hash[0], changed.pixels) = (changed.hash[0] ^ 1, Pixels(pixels.into()));
    assert_eq!(plan.chunks[1].ids, other.chunks[1].ids, "their tokens are the same");
    let first = run_one(&ranks, &kept(plan.clone()));
    let (found, reports) = run_one(&ranks, &warm(other.clone()));
    let hits: usize = reports.iter().map(|report| report.chunk_cache.hits).sum();
    assert_eq!(hits, plan.chunks.len() - 1, "all chunks but the changed one are warm");
    assert_ne!(logits(&found), logits(&first.0), "a pixel changes the answer");
    ranks.end().expect("the group ends well");
}
