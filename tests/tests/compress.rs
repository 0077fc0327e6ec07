//! Chunks that keep some of their rows before they are cached: every world and exchange keeps the
//! same rows and gives the same answer, from memory and from a store as cold, bit for bit; a second
//! implementation, dense and in f64, keeps the same rows and finds the same logits.

mod dense;

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_protocol::{EVICTIONS, Evict, Eviction, EvictionDescriptor, Exchange, Outcome, Plan, PlannedMethod};
use tributary_tests::equal::{Largest, assert_same_bits};
use tributary_tests::samples::Case;
use tributary_tests::{
    between, dummy_model, infoflow, kept, logits, method, open_store, plan, relative_error, run_all, run_one,
    stored_group, tiny_config, warm, with_ratio,
};

const LENGTHS: &[usize] = &[17, 9, 23, 12];
const PREFIX: usize = 2;

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 5)
}

fn evict(method: Eviction, keep: usize) -> Evict {
    Evict { method, keep, window: 4, pooled: 3, sinks: 2, beta: 20, pseudo: 0, seed: 7, gather: false }
}

/// The plan whose chunks keep a half of their tokens; the second one is whole.
fn compressed(mut plan: Plan, method: Eviction) -> Plan {
    for (index, chunk) in plan.chunks.iter_mut().enumerate() {
        chunk.compress = (index != 1).then(|| evict(method, chunk.ids.len() / 2));
    }
    plan
}

fn able() -> impl Iterator<Item = &'static EvictionDescriptor> {
    EVICTIONS.into_iter().filter(|method| method.compresses_chunks())
}

/// Every sample whose chunks may be compressed by the usual way, and some by every way; one between
/// an adapter's rows. Without a lead and with one.
fn plans(model: &dyn Model, world: usize, exchange: Exchange) -> Vec<Plan> {
    [&[][..], &[1]].into_iter().flat_map(|lead| led_plans(model, world, exchange, lead)).collect()
}

fn led_plans(model: &dyn Model, world: usize, exchange: Exchange, lead: &[u32]) -> Vec<Plan> {
    let case = Case { prefix: PREFIX, lead, chunks: LENGTHS, query: 6, world, exchange, ratio: 0.3 };
    let usual = case
        .in_chunks(":keep-per-chunk=50%", model)
        .into_iter()
        .map(|sample| compressed(sample.plan, Eviction::SnapKv));
    let mut plans: Vec<Plan> = usual.collect();
    let of = |method: PlannedMethod, way| {
        compressed(with_ratio(plan(PREFIX, LENGTHS, 6, world, method, exchange), 0.3), way)
    };
    plans.extend(able().flat_map(|way| [method("none"), infoflow(0, 4)].map(|method| of(method, way.method))));
    plans.push(between(of(infoflow(1, 3), Eviction::SnapKv)));
    plans.iter_mut().for_each(|plan| plan.lead = lead.to_vec());
    plans
}

fn named(plan: &Plan) -> String {
    let way = plan.chunks[0].compress.as_ref().map_or("-", |evict| evict.descriptor().name);
    format!("{} {way}, {:?}", plan.method.name(), plan.exchange)
}

#[test]
fn every_world_keeps_the_same_rows_and_answers_alike() {
    let (model, mut largest) = (model(), Largest::new("compressed chunks: world W = world 1"));
    let alone = run_all(&model, Kernels::Auto, 1, &plans(&*model, 1, Exchange::PassQ));
    for world in 1..=4 {
        for exchange in [Exchange::Replicate, Exchange::PassQ] {
            let plans = plans(&*model, world, exchange);
            let found = run_all(&model, Kernels::Auto, world, &plans);
            for ((found, alone), plan) in found.iter().zip(&alone).zip(&plans) {
                let what = format!("{}, world {world}", named(plan));
                largest.check_answer(&found.0, &alone.0, plan, &what);
            }
        }
    }
}

#[test]
fn chunks_keep_as_many_rows_in_every_head_as_was_asked_and_other_rows_in_each() {
    let model = model();
    for plan in plans(&*model, 2, Exchange::Selected) {
        let outcome = run_all(&model, Kernels::Auto, 2, std::slice::from_ref(&plan)).swap_remove(0).0;
        let kept = outcome.kept_of_chunks.expect("it was asked for").0;
        let mut differ = 0;
        for heads in &kept {
            for rows in heads {
                for (chunk, range) in plan.chunks.iter().zip(plan.chunk_rows()) {
                    let held: Vec<u32> = rows.iter().copied().filter(|row| range.contains(row)).collect();
                    assert_eq!(held.len(), chunk.held_rows(), "{}", named(&plan));
                    let around = chunk.around.map_or(0..0, |around| range.end - around.tail..range.end);
                    assert!(around.clone().all(|row| held.contains(&row)), "{}: {held:?}", named(&plan));
                    assert!((0..chunk.head_rows() as u32).all(|row| held.contains(&(range.start + row))));
                }
            }
            differ += usize::from(heads[0] != heads[1]);
        }
        let together = plan.chunks[0].compress.as_ref().expect("it keeps some").descriptor().heads_together;
        assert_eq!(differ == 0, together, "{}", named(&plan));
    }
}

/// Of a group with a store in this folder, as a process would have it.
fn stored(model: &Arc<dyn Model>, folder: &std::path::Path, plans: &[&Plan]) -> Vec<(Outcome, [usize; 2])> {
    let store = open_store(folder);
    let group = stored_group(model, 2, &store);
    let run = |plan: &&Plan| {
        let (outcome, reports) = run_one(&group, plan);
        let caches = || reports.iter().map(|report| &report.chunk_cache);
        let hits = caches().map(|cache| cache.hits).sum();
        (outcome, [hits, caches().map(|cache| cache.from_store.loaded).sum()])
    };
    let found = plans.iter().map(run).collect();
    group.end().expect("the group ends well");
    assert!(store.flush(std::time::Duration::from_secs(20)), "everything is written");
    found
}

/// By every way to compress: `warm.rs` and `stored.rs` test the properties of every sample.
#[test]
fn warm_chunks_answer_as_cold_ones_from_memory_and_after_a_restart_and_never_meet_others() {
    let (model, all) = (model(), LENGTHS.len());
    for way in able() {
        let cold = compressed(plan(PREFIX, LENGTHS, 6, 2, method("none"), Exchange::PassQ), way.method);
        let (what, folder) = (named(&cold), tempfile::tempdir().expect("a folder"));
        let mut bare = warm(cold.clone());
        bare.chunks.iter_mut().for_each(|chunk| chunk.compress = None);
        let mut fewer = warm(cold.clone());
        fewer.chunks.iter_mut().filter_map(|chunk| chunk.compress.as_mut()).for_each(|evict| evict.keep -= 1);
        let (kept, warm) = (kept(cold.clone()), warm(cold));
        let first = stored(&model, folder.path(), &[&kept, &warm, &bare, &fewer]);
        assert_same_bits(&first[1].0, &first[0].0, &what);
        assert_eq!([first[1].1, first[2].1, first[3].1], [[all, 0], [1, 0], [1, 0]], "only the whole one fits: {what}");
        let kept = Plan { keep_chunks: true, ..warm.clone() };
        let again = stored(&model, folder.path(), &[&warm, &bare, &kept, &warm]);
        assert_eq!(again.iter().map(|run| run.1[1]).collect::<Vec<_>>(), [all, 1, all, 0], "{what}");
        for run in [0, 2, 3] {
            assert_same_bits(&again[run].0, &first[0].0, &what);
        }
    }
}

#[test]
fn a_dense_implementation_keeps_the_same_rows_and_finds_the_same_logits() {
    let (model, mut largest) = (model(), Largest::new("compressed chunks = a dense second implementation"));
    for way in able() {
        for method in [method("none"), method("random")] {
            let bare = with_ratio(plan(PREFIX, LENGTHS, 6, 3, method, Exchange::PassQ), 0.3);
            let led = Plan { lead: vec![1], ..bare.clone() };
            let plans = [bare.clone(), led, between(bare)].map(|plan| compressed(plan, way.method));
            for plan in plans {
                let found = run_all(&model, Kernels::Auto, 3, std::slice::from_ref(&plan)).swap_remove(0).0;
                let dense = dense::Dense::new(&*model, &plan);
                assert_eq!(found.kept_of_chunks.as_deref(), Some(&dense.kept), "{}", named(&plan));
                let expected = dense.logits(&found.selected);
                largest.check(relative_error(logits(&found), &expected), &named(&plan));
            }
        }
    }
}

/// If the query selects the recomputed rows, every row that is dropped in all heads may still be
/// selected; and rows that are all selected are all exact.
#[test]
fn recomputing_everything_is_exact_whatever_was_kept() {
    let (model, mut largest) = (model(), Largest::new("compressed chunks at ratio 1 = full"));
    let full = run_all(&model, Kernels::Auto, 1, &[plan(PREFIX, LENGTHS, 6, 1, method("full"), Exchange::PassQ)]);
    for method in [infoflow(0, 4), method("relay"), method("random")] {
        for exchange in [Exchange::Replicate, Exchange::PassQ] {
            let all = with_ratio(plan(PREFIX, LENGTHS, 6, 3, method, exchange), 1.0);
            let all = Plan { include_first_chunk: true, ..compressed(all, Eviction::SnapKv) };
            let found = run_all(&model, Kernels::Auto, 3, &[all]);
            largest.check(relative_error(logits(&found[0].0), logits(&full[0].0)), method.name());
        }
    }
}
