//! Trained rows around chunks, with every method that takes them: the same rows are selected and the same answer comes in every world and
//! exchange, from memory as cold, and none of those rows is ever selected.

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_protocol::{Choice, Exchange, METHODS, Method, Outcome, Plan, Source};
use tributary_tests::equal::Largest;
use tributary_tests::{
    between, dummy_model, eager_trace, logits, plain_selections, plan, relative_error, reordered, run_all, tiny_config,
    with_ratio,
};
use tributary_worker::Model;

const LENGTHS: &[usize] = &[17, 9, 23, 12];

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 5)
}

/// Every method that takes them.
fn methods() -> Vec<Method> {
    let methods = [plain_selections(), vec![eager_trace()]].concat();
    let takes =
        |method: &Method| [Choice::Packets, Choice::Adapter].iter().any(|&choice| method.descriptor().takes(choice));
    assert!(methods.iter().all(takes));
    for method in METHODS.into_iter().filter(|method| method.takes(Choice::Packets)) {
        assert!(methods.iter().any(|made| made.name() == method.name), "{} is missing", method.name);
    }
    methods
}

fn plans(world: usize, exchange: Exchange) -> Vec<Plan> {
    let of = |method: Method| {
        let plan = between(with_ratio(plan(2, LENGTHS, 6, world, method.clone(), exchange), 0.3));
        if matches!(method, Method::Relay { .. }) { reordered(plan) } else { plan }
    };
    methods().into_iter().map(of).collect()
}

#[test]
fn every_world_answers_as_one_rank_does() {
    let (model, mut largest) = (model(), Largest::new("packets: world W = world 1"));
    let alone = run_all(&model, Kernels::Auto, 1, &plans(1, Exchange::PassQ));
    for world in 2..=4 {
        for exchange in [Exchange::Replicate, Exchange::PassQ] {
            let plans = plans(world, exchange);
            let found = run_all(&model, Kernels::Auto, world, &plans);
            for ((found, alone), plan) in found.iter().zip(&alone).zip(&plans) {
                let what = format!("{} {exchange:?}, world {world}", plan.method.name());
                assert_eq!(found.0.selected, alone.0.selected, "{what}");
                assert_eq!(found.0.order, alone.0.order, "{what}");
                largest.check(relative_error(logits(&found.0), logits(&alone.0)), &what);
                assert_eq!(found.0.tokens, alone.0.tokens, "{what}");
            }
        }
    }
}

#[test]
fn they_change_the_answer_and_are_never_selected() {
    let model = model();
    let plans = plans(2, Exchange::PassQ);
    let bare: Vec<Plan> = plans
        .iter()
        .map(|plan| {
            let mut plan = plan.clone();
            plan.chunks.iter_mut().for_each(|chunk| chunk.around = None);
            plan
        })
        .collect();
    let (with, without) = (run_all(&model, Kernels::Auto, 2, &plans), run_all(&model, Kernels::Auto, 2, &bare));
    for ((with, without), plan) in with.iter().zip(&without).zip(&plans) {
        let method = plan.method.name();
        assert!(relative_error(logits(&with.0), logits(&without.0)) > 1e-3, "{method}");
        let sources = plan.sources();
        let is_token = |row: &u32| matches!(sources[*row as usize], Source::Token(_));
        assert!(with.0.selected.iter().all(is_token), "{method}: {:?}", with.0.selected);
        assert_eq!(with.0.selected.is_empty(), without.0.selected.is_empty(), "{method}");
    }
}

#[test]
fn a_warm_chunk_with_its_rows_equals_a_cold_one_and_is_another_chunk_than_the_bare_one() {
    let model = model();
    for plan in plans(2, Exchange::Replicate) {
        let kept = Plan { keep_chunks: true, ..plan.clone() };
        let mut warm = plan.clone();
        warm.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
        let mut bare = warm.clone();
        bare.chunks.iter_mut().for_each(|chunk| chunk.around = None);
        let runs = run_all(&model, Kernels::Auto, 2, &[kept, warm, bare]);
        let hits = |run: usize| runs[run].1.iter().map(|report| report.chunk_cache.hits).sum::<usize>();
        let bits = |outcome: &Outcome| logits(outcome).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&runs[0].0), bits(&runs[1].0), "{}", plan.method.name());
        assert_eq!((hits(1), runs[0].0.tokens == runs[1].0.tokens), (LENGTHS.len(), true), "{}", plan.method.name());
        if plan.method != Method::KvPacket {
            assert_eq!(hits(2), 0, "{}", plan.method.name());
        }
    }
}
