//! Trained rows around chunks, with every method that takes them: they change the answer, none of
//! them is ever selected, and a chunk with them is another chunk in the cache than the bare one.
//! `warm.rs`, `stored.rs` and `equivalence.rs` check the properties of all samples with them too.

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_protocol::{Exchange, Plan, Source};
use tributary_tests::samples::{Case, Sample};
use tributary_tests::{between, dummy_model, kept, logits, relative_error, run_all, tiny_config, warm};

const CASE: Case<'_> =
    Case { prefix: 2, lead: &[], chunks: &[17, 9, 23, 12], query: 6, world: 2, exchange: Exchange::PassQ, ratio: 0.3 };

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 5)
}

/// The plan without rows of an adapter.
fn bare(mut plan: Plan) -> Plan {
    plan.chunks.iter_mut().for_each(|chunk| chunk.around = None);
    plan
}

/// Every sample that takes them, and those that are never without.
fn samples(model: &dyn Model) -> Vec<Sample> {
    let mut samples = CASE.samples(":packets", model);
    samples.extend(CASE.samples("", model).into_iter().filter(|sample| sample.plan.chunks[0].around.is_some()));
    samples
}

#[test]
fn they_change_the_answer_and_are_never_selected() {
    let model = model();
    let samples = samples(&*model);
    let plans: Vec<Plan> = samples.iter().map(|sample| sample.plan.clone()).collect();
    let without: Vec<Plan> = plans.iter().cloned().map(bare).collect();
    let (with, without) = (run_all(&model, Kernels::Auto, 2, &plans), run_all(&model, Kernels::Auto, 2, &without));
    for ((with, without), Sample { spec, plan }) in with.iter().zip(&without).zip(&samples) {
        assert!(relative_error(logits(&with.0), logits(&without.0)) > 1e-3, "{spec}");
        let sources = plan.sources();
        let is_token = |row: &u32| matches!(sources[*row as usize], Source::Token(_));
        assert!(with.0.selected.iter().all(is_token), "{spec}: {:?}", with.0.selected);
        assert_eq!(with.0.selected.is_empty(), without.0.selected.is_empty(), "{spec}");
    }
}

#[test]
fn a_chunk_with_its_rows_is_another_chunk_than_the_bare_one() {
    let model = model();
    let plain = CASE.planned("none", &*model).expect("a plan");
    let packed = between(plain.clone());
    for (keeps, asks, expected) in [(&packed, &packed, CASE.chunks.len()), (&packed, &plain, 0), (&plain, &packed, 0)] {
        let runs = run_all(&model, Kernels::Auto, 2, &[kept(keeps.clone()), warm(asks.clone())]);
        assert_eq!(runs[1].1.iter().map(|report| report.chunk_cache.hits).sum::<usize>(), expected);
    }
}
