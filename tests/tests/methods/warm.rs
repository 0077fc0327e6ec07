//! Invariant 6: a warm chunk equals a cold one. Bit for bit for the same request, also after
//! another query has used the same chunks; within 1e-4 when a request's other chunks were computed
//! in other company.

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_model::{Model, in_eight_bits};
use tributary_protocol::{Exchange, Plan, RankReport};
use tributary_tests::equal::assert_same_bits;
use tributary_tests::samples::{Case, Sample, apart};
use tributary_tests::{
    dummy_model, gemma, glm_with_experts, gpt_oss, group, infoflow, kept, logits, packed, plan, relative_error,
    run_all, run_one, tiny_config, warm, with_ratio,
};

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Uneven chunks, fewer than ranks in some worlds.
const SHAPES: [(usize, &[usize]); 4] = [(3, &[17, 5, 23, 9, 12]), (1, &[31, 8]), (0, &[14, 6, 11]), (2, &[29])];

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 11)
}

/// The plan with those chunks warm whose number `is_warm` likes.
fn partly_warm(mut plan: Plan, is_warm: impl Fn(usize) -> bool) -> Plan {
    plan.chunks.iter_mut().enumerate().for_each(|(index, chunk)| chunk.warm = is_warm(index));
    plan
}

/// The plan with another query of the same length.
fn asked_otherwise(mut plan: Plan) -> Plan {
    plan.query.iter_mut().for_each(|id| *id = (*id + 31) % 96);
    plan
}

fn hits(reports: &[RankReport]) -> usize {
    reports.iter().map(|report| report.chunk_cache.hits).sum()
}

#[test]
fn warm_equals_cold_bit_for_bit_and_again_after_another_query() {
    let [gemma, gpt_oss, experts, packed] =
        [&gemma(), &gpt_oss(), &glm_with_experts(), &packed()].map(|config| dummy_model(config, 12));
    let models = [gemma, gpt_oss, in_eight_bits(experts), packed];
    let model = |world: usize| &models[world % 4];
    let lists =
        (1..=4).flat_map(|world| apart(&SHAPES, world, &**model(world)).into_iter().map(move |list| (world, list)));
    for (world, samples) in lists {
        let ranks = group(model(world), world);
        for sample in samples {
            let (plan, what) = (&sample.plan, format!("{}, world {world}", sample.what()));
            let other = asked_otherwise(plan.clone());
            let plans = [kept(plan.clone()), warm(plan.clone()), warm(other.clone()), warm(plan.clone()), other];
            let found = plans.map(|plan| run_one(&ranks, &plan));
            assert_same_bits(&found[1].0, &found[0].0, &what);
            assert_same_bits(&found[3].0, &found[0].0, &format!("again: {what}"));
            assert_same_bits(&found[2].0, &found[4].0, &format!("another query: {what}"));
            let all = plan.chunks.len();
            assert_eq!(found.each_ref().map(|(_, reports)| hits(reports)), [0, all, all, all, 0], "{what}");
            let computed: usize = found[1].1.iter().map(|report| report.prefilled_rows).sum();
            assert_eq!(computed, 0, "nothing is prefilled: {what}");
        }
        ranks.end().expect("the group ends well");
    }
}

#[test]
fn a_partly_warm_request_equals_a_cold_one() {
    let model = model();
    for world in 1..=4 {
        for exchange in EXCHANGES {
            let lengths = [17, 5, 23, 9, 12, 20];
            let cold = with_ratio(plan(2, &lengths, 6, world, infoflow(1, 3), exchange), 0.3);
            // Every other chunk was kept by a separate request, in another order and on the same
            // ranks.
            let mut first = cold.clone();
            first.chunks = cold.chunks.iter().rev().filter(|chunk| chunk.ids.len() % 2 == 1).cloned().collect();
            let part = partly_warm(cold.clone(), |index| lengths[index] % 2 == 1);
            let found = run_all(&model, Kernels::Auto, world, &[kept(first), part, cold]);
            let what = format!("{exchange:?}, world {world}");
            assert_eq!(hits(&found[1].1), 4, "{what}");
            let computed: usize = found[1].1.iter().map(|report| report.prefilled_rows).sum();
            assert_eq!(computed, 12 + 20, "only what is missing: {what}");
            assert_eq!(found[1].0.selected, found[2].0.selected, "{what}");
            let error = relative_error(logits(&found[1].0), logits(&found[2].0));
            assert!(error < 1e-4, "{what}: {error:e}");
        }
    }
}

#[test]
fn what_a_plan_wrongly_calls_warm_is_computed() {
    let model = model();
    for exchange in EXCHANGES {
        let cold = with_ratio(plan(2, &[17, 5, 23], 6, 2, infoflow(1, 3), exchange), 0.3);
        let all_warm = warm(cold.clone());
        // Kept on the other rank: not found where the plan sends the chunk.
        let mut elsewhere = kept(cold.clone());
        elsewhere.chunks.iter_mut().for_each(|chunk| chunk.rank = 1 - chunk.rank);
        let found = run_all(&model, Kernels::Auto, 2, &[all_warm.clone(), elsewhere, all_warm, cold]);
        for index in [0, 2] {
            let misses: usize = found[index].1.iter().map(|report| report.chunk_cache.misses).sum();
            assert_eq!((hits(&found[index].1), misses), (0, 3));
            let error = relative_error(logits(&found[index].0), logits(&found[3].0));
            assert!(error < 1e-4, "{exchange:?}: {error:e}");
        }
    }
}

#[test]
fn methods_that_reuse_nothing_keep_nothing_and_take_nothing() {
    let model = model();
    let case =
        Case { prefix: 2, lead: &[], chunks: &[17, 5], query: 6, world: 2, exchange: Exchange::Replicate, ratio: 0.3 };
    for Sample { spec, plan } in case.samples("", &*model).into_iter().filter(|sample| !sample.plan.method.reuses()) {
        let plan = warm(kept(plan));
        for (_, reports) in run_all(&model, Kernels::Auto, 2, &[plan.clone(), plan]) {
            assert!(reports.iter().all(|report| report.chunk_cache == Default::default()), "{spec}");
        }
    }
}
