//! Invariant 6: a warm chunk equals a cold one. Bit for bit for the same request, also after another query has used the same
//! chunks; within 1e-4 when a request's other chunks were computed in other company.

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_protocol::{Ape, Drift, Exchange, Layout, Method, Outcome, Plan, RankReport, SamKvVariant};
use tributary_tests::{
    can_reorder, dummy_model, eager_trace, infoflow, logits, plan, relative_error, reordered, run_all, samkv,
    tiny_config, with_ratio,
};
use tributary_worker::Model;

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Uneven chunks, fewer than ranks in some worlds.
const SHAPES: [(usize, &[usize]); 4] = [(3, &[17, 5, 23, 9, 12]), (1, &[31, 8]), (0, &[14, 6, 11]), (2, &[29])];

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 11)
}

fn methods() -> Vec<Method> {
    vec![
        Method::None,
        Method::Epic { per_chunk: None },
        infoflow(1, 3),
        Method::Relay { layout: Layout::Global },
        Method::CacheBlend(Drift::default()),
        Method::KvShare,
        Method::CacheClip,
        Method::KvPacket,
        Method::Ideal,
        samkv(SamKvVariant::Small, 0.9),
        Method::Ape(Ape::default()),
        eager_trace(),
    ]
}

fn kept(mut plan: Plan) -> Plan {
    plan.keep_chunks = true;
    plan
}

/// The plan with those chunks warm whose number `is_warm` likes.
fn warm(mut plan: Plan, is_warm: impl Fn(usize) -> bool) -> Plan {
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

fn same_bits(a: &Outcome, b: &Outcome, what: &str) {
    let bits = |outcome: &Outcome| logits(outcome).iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    assert_eq!((&a.selected, &a.order, &a.tokens), (&b.selected, &b.order, &b.tokens), "{what}");
    assert!(bits(a) == bits(b), "{what}: logits differ");
}

#[test]
fn warm_equals_cold_bit_for_bit_and_again_after_another_query() {
    let model = model();
    for world in 1..=4 {
        for (prefix, lengths) in SHAPES {
            for exchange in EXCHANGES {
                for method in methods() {
                    let cold = with_ratio(plan(prefix, lengths, 6, world, method, exchange), 0.3);
                    let cold = if can_reorder(&cold.method) { reordered(cold) } else { cold };
                    let warm = warm(cold.clone(), |_| true);
                    let other = asked_otherwise(warm.clone());
                    let plans = [kept(cold.clone()), warm.clone(), other.clone(), warm, asked_otherwise(cold.clone())];
                    let found = run_all(&model, Kernels::Auto, world, &plans);
                    let what = format!("{:?}, {exchange:?}, world {world}, {lengths:?} behind {prefix}", cold.method);
                    same_bits(&found[0].0, &found[1].0, &what);
                    same_bits(&found[0].0, &found[3].0, &format!("again: {what}"));
                    same_bits(&found[2].0, &found[4].0, &format!("another query: {what}"));
                    let all_hits: Vec<usize> = found.iter().map(|(_, reports)| hits(reports)).collect();
                    assert_eq!(all_hits, [0, lengths.len(), lengths.len(), lengths.len(), 0], "{what}");
                    let computed: usize = found[1].1.iter().map(|report| report.prefilled_rows).sum();
                    assert_eq!(computed, 0, "nothing is prefilled: {what}");
                }
            }
        }
    }
}

#[test]
fn a_partly_warm_request_equals_a_cold_one() {
    let model = model();
    for world in 1..=4 {
        for exchange in EXCHANGES {
            let lengths = [17, 5, 23, 9, 12, 20];
            let cold = with_ratio(plan(2, &lengths, 6, world, infoflow(1, 3), exchange), 0.3);
            // Every other chunk was kept by a request of its own, in another order and on the same ranks.
            let mut first = cold.clone();
            first.chunks = cold.chunks.iter().rev().filter(|chunk| chunk.ids.len() % 2 == 1).cloned().collect();
            let part = warm(cold.clone(), |index| lengths[index] % 2 == 1);
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
        let all_warm = warm(cold.clone(), |_| true);
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
fn exact_methods_keep_nothing_and_take_nothing() {
    let model = model();
    for method in [Method::Full, Method::Ring, Method::AllGather { heads_per_gather: None }] {
        let plan = warm(kept(plan(2, &[17, 5], 6, 2, method, Exchange::Replicate)), |_| true);
        for (_, reports) in run_all(&model, Kernels::Auto, 2, &[plan.clone(), plan]) {
            assert!(reports.iter().all(|report| report.chunk_cache == Default::default()));
        }
    }
}
