//! Chunks that keep some of their rows before they are cached: every world and exchange keeps the same rows and gives the same answer, from
//! memory and from a store as cold, bit for bit; a second implementation, dense and in f64, keeps the same rows and finds the same logits.

mod dense;

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_protocol::{
    Choice, EVICTIONS, Evict, Eviction, EvictionDescriptor, Exchange, Layout, METHODS, Method, Outcome, Plan,
};
use tributary_tests::equal::{Largest, assert_same_selection};
use tributary_tests::{
    between, dummy_model, infoflow, logits, open_store, plain_selections, plan, relative_error, reordered, run_all,
    run_one, stored_group, tiny_config, with_ratio,
};
use tributary_worker::Model;

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

/// Every method whose chunks may be compressed.
fn methods() -> Vec<Method> {
    let methods = [plain_selections(), vec![Method::CacheClip]].concat();
    for method in METHODS.into_iter().filter(|method| method.takes(Choice::KeepPerChunk)) {
        assert!(methods.iter().any(|made| made.name() == method.name), "{} is missing", method.name);
    }
    methods
}

/// Plans of every method, and of every way to compress.
fn plans(world: usize, exchange: Exchange) -> Vec<Plan> {
    let of = |method: &Method, way: Eviction| {
        let plan = with_ratio(plan(PREFIX, LENGTHS, 6, world, method.clone(), exchange), 0.3);
        let plan = if matches!(method, Method::Relay { .. }) { reordered(plan) } else { plan };
        compressed(plan, way)
    };
    let mut plans: Vec<Plan> = methods().iter().map(|method| of(method, Eviction::SnapKv)).collect();
    plans.extend(able().flat_map(|way| [Method::None, infoflow(0, 4)].map(|method| of(&method, way.method))));
    plans.push(between(of(&infoflow(1, 3), Eviction::SnapKv)));
    plans
}

fn named(plan: &Plan) -> String {
    let way = plan.chunks[0].compress.as_ref().map_or("-", |evict| evict.descriptor().name);
    format!("{} {way}, {:?}", plan.method.name(), plan.exchange)
}

#[test]
fn every_world_keeps_the_same_rows_and_answers_alike() {
    let (model, mut largest) = (model(), Largest::new("compressed chunks: world W = world 1"));
    let alone = run_all(&model, Kernels::Auto, 1, &plans(1, Exchange::PassQ));
    for world in 1..=4 {
        for exchange in [Exchange::Replicate, Exchange::PassQ] {
            let plans = plans(world, exchange);
            let found = run_all(&model, Kernels::Auto, world, &plans);
            for ((found, alone), plan) in found.iter().zip(&alone).zip(&plans) {
                let what = format!("{}, world {world}", named(plan));
                assert_eq!(found.0.kept_of_chunks, alone.0.kept_of_chunks, "{what}");
                assert_same_selection(&found.0, &alone.0, PREFIX as u32, &what);
                assert_eq!(found.0.order, alone.0.order, "{what}");
                largest.check(relative_error(logits(&found.0), logits(&alone.0)), &what);
                assert_eq!(found.0.tokens, alone.0.tokens, "{what}");
            }
        }
    }
}

#[test]
fn chunks_keep_as_many_rows_in_every_head_as_was_asked_and_other_rows_in_each() {
    let model = model();
    for plan in plans(2, Exchange::Selected) {
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

fn same_bits(a: &Outcome, b: &Outcome, what: &str) {
    let bits = |outcome: &Outcome| logits(outcome).iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    assert_eq!((&a.selected, &a.order, &a.tokens), (&b.selected, &b.order, &b.tokens), "{what}");
    assert_eq!(a.kept_of_chunks, b.kept_of_chunks, "{what}");
    assert!(bits(a) == bits(b), "{what}: logits differ");
}

fn warm(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
    plan
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

#[test]
fn warm_chunks_answer_as_cold_ones_from_memory_and_after_a_restart_and_never_meet_others() {
    let (model, all) = (model(), LENGTHS.len());
    for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
        for cold in plans(2, exchange) {
            let (what, folder) = (named(&cold), tempfile::tempdir().expect("a folder"));
            let kept = Plan { keep_chunks: true, ..cold.clone() };
            let mut bare = warm(&cold);
            bare.chunks.iter_mut().for_each(|chunk| chunk.compress = None);
            let mut fewer = warm(&cold);
            fewer.chunks.iter_mut().filter_map(|chunk| chunk.compress.as_mut()).for_each(|evict| evict.keep -= 1);
            let first = stored(&model, folder.path(), &[&kept, &warm(&cold), &bare, &fewer]);
            same_bits(&first[0].0, &first[1].0, &what);
            assert_eq!(
                [first[1].1, first[2].1, first[3].1],
                [[all, 0], [1, 0], [1, 0]],
                "only the whole one fits: {what}"
            );
            let again = stored(&model, folder.path(), &[&warm(&cold), &bare, &warm(&kept), &warm(&cold)]);
            assert_eq!(again.iter().map(|run| run.1[1]).collect::<Vec<_>>(), [all, 1, all, 0], "{what}");
            for run in [0, 2, 3] {
                same_bits(&first[0].0, &again[run].0, &what);
            }
        }
    }
}

#[test]
fn a_dense_implementation_keeps_the_same_rows_and_finds_the_same_logits() {
    let (model, mut largest) = (model(), Largest::new("compressed chunks = a dense second implementation"));
    for way in able() {
        for method in [Method::None, Method::Random { seed: 3 }] {
            let bare = with_ratio(plan(PREFIX, LENGTHS, 6, 3, method, Exchange::PassQ), 0.3);
            for plan in [compressed(bare.clone(), way.method), compressed(between(bare), way.method)] {
                let found = run_all(&model, Kernels::Auto, 3, std::slice::from_ref(&plan)).swap_remove(0).0;
                let dense = dense::Dense::new(&*model, &plan);
                assert_eq!(found.kept_of_chunks.as_deref(), Some(&dense.kept), "{}", named(&plan));
                let expected = dense.logits(&found.selected);
                largest.check(relative_error(logits(&found), &expected), &named(&plan));
            }
        }
    }
}

/// Where the query asks which rows are recomputed, every row that is dropped in all heads may still be selected; and rows that are all
/// selected are all exact.
#[test]
fn recomputing_everything_is_exact_whatever_was_kept() {
    let (model, mut largest) = (model(), Largest::new("compressed chunks at ratio 1 = full"));
    let full = run_all(&model, Kernels::Auto, 1, &[plan(PREFIX, LENGTHS, 6, 1, Method::Full, Exchange::PassQ)]);
    for method in [infoflow(0, 4), Method::Relay { layout: Layout::Global }, Method::Random { seed: 3 }] {
        for exchange in [Exchange::Replicate, Exchange::PassQ] {
            let all = with_ratio(plan(PREFIX, LENGTHS, 6, 3, method.clone(), exchange), 1.0);
            let all = Plan { include_first_chunk: true, ..compressed(all, Eviction::SnapKv) };
            let found = run_all(&model, Kernels::Auto, 3, &[all]);
            largest.check(relative_error(logits(&found[0].0), logits(&full[0].0)), method.name());
        }
    }
}
