//! The formula of bytes (`planner::cost::bytes`) against the counters of every rank, to the byte.

use std::sync::Arc;

use candle_core::DType;
use tributary_kernels::Kernels;
use tributary_model::{Model, in_eight_bits};
use tributary_planner::cost::{Selected, bytes};
use tributary_protocol::{Exchange, Passing, Plan, PlannedMethod, Returns};
use tributary_tests::samples::{Case, Sample, leads};
use tributary_tests::{anchored, dummy_model_of, infoflow, plan, run_all, shape, tiny_config, with_ratio};

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Prefix, chunk lengths, query length: even, uneven, no prefix, fewer chunks than ranks, a prompt
/// as short as the world.
const SHAPES: [(usize, &[usize], usize); 5] =
    [(1, &[16, 16, 16, 16], 5), (3, &[7, 31, 2, 18, 1], 4), (0, &[12, 9], 1), (2, &[40], 6), (0, &[1, 1], 1)];

/// Heads and KV heads that differ, a separate head width, an odd number of KV heads.
fn model(dtype: DType) -> Arc<dyn Model> {
    let changes = [
        ("architectures", serde_json::json!(["Qwen3ForCausalLM"])),
        ("num_attention_heads", 6.into()),
        ("num_key_value_heads", 3.into()),
        ("head_dim", 8.into()),
    ];
    dummy_model_of(&tiny_config(&changes), 5, dtype)
}

/// Blocks of several lengths, with anchors and keys that they pass on of several lengths.
fn blocks() -> Vec<PlannedMethod> {
    let mut methods: Vec<PlannedMethod> = [Some(3), Some(1000)].map(|rows| anchored("star", rows, None)).into();
    let passing = [(None, None), (Some(3), Some(2)), (Some(0), Some(1000)), (Some(9), Some(0))];
    let passing = passing.map(|(anchor_tokens, passing_tokens)| Passing { anchor_tokens, passing_tokens });
    for block_tokens in [None, Some(7), Some(16), Some(1000)] {
        methods.extend(passing.map(|passing| anchored("apb", block_tokens, Some(passing))));
    }
    methods
}

/// Every sample with every exchange and ratio, those that work in chunks also with the options that
/// they combine with.
fn plans(model: &dyn Model, shape: (usize, &[usize], usize), world: usize) -> Vec<Plan> {
    let make = |method: PlannedMethod| plan(shape.0, shape.1, shape.2, world, method, Exchange::PassQ);
    let mut plans: Vec<Plan> = blocks().into_iter().map(make).collect();
    for exchange in EXCHANGES {
        for (ratio, options) in [(0.0, ""), (0.3, ""), (0.3, ":packets"), (0.3, ":keep-per-chunk=50%"), (1.0, ":first")]
        {
            // Every exchange but one with a lead.
            let lead = if exchange == Exchange::PassQ { &[] } else { leads(shape.0).pop().expect("a lead") };
            let case = Case { prefix: shape.0, lead, chunks: shape.1, query: shape.2, world, exchange, ratio };
            for Sample { plan, .. } in case.samples(options, model) {
                let is_new = !plans.contains(&plan) && (plan.method.selects() || exchange == EXCHANGES[0]);
                if !is_new {
                    continue;
                }
                if plan.compresses() && exchange == Exchange::PassQ {
                    let unseen = Returns { scores: false, ..plan.returns };
                    plans.push(Plan { returns: unseen, ..plan.clone() });
                }
                plans.push(plan);
            }
        }
    }
    plans
}

fn check(model: &Arc<dyn Model>, shapes: &[(usize, &[usize], usize)]) {
    let dtype = model.dtype();
    let model_shape = shape(&**model, dtype);
    let (mut compared, mut reordered, mut hops, mut rounds) = (0, 0, 0, 0);
    for &request in shapes {
        for world in 1..=4 {
            let plans = plans(&**model, request, world);
            let runs = run_all(model, Kernels::Auto, world, &plans);
            for ((outcome, reports), plan) in runs.iter().zip(&plans) {
                let selected = Selected::from(outcome);
                let formula = bytes::received(plan, world, &model_shape, &selected);
                let counted: Vec<u64> = reports.iter().map(|report| report.traffic.tensor_bytes_received()).collect();
                let what = format!(
                    "{:?} {:?}, budget {}, reorder {:?}, world {world}, {request:?}, {dtype:?}",
                    plan.method, plan.exchange, plan.budget, plan.reorder
                );
                assert_eq!(formula, counted, "{what}");
                compared += counted.iter().filter(|&&bytes| bytes > 0).count();
                reordered += usize::from(selected.order.windows(2).any(|pair| pair[0] > pair[1]));
                hops += usize::from(!selected.measured.is_empty());
                rounds += usize::from(selected.rounds.len() > 1);
            }
        }
    }
    println!("{dtype:?}: {compared} counters above 0 agree to the byte");
    assert!(compared > 1000 && reordered > 20 && hops > 20, "{compared}, {reordered} reordered, {hops} hops");
    assert!(rounds > 10, "{rounds} requests of several free probes");
}

#[test]
fn the_formula_is_what_every_rank_counts_in_f32() {
    check(&model(DType::F32), &SHAPES);
}

#[test]
fn the_formula_is_what_every_rank_counts_in_bf16() {
    check(&model(DType::BF16), &SHAPES[1..3]);
}

#[test]
fn the_formula_is_what_every_rank_counts_of_keys_in_8_bits() {
    check(&in_eight_bits(model(DType::F32)), &SHAPES[1..3]);
}

/// Rows that belong to the chunks of one rank but are computed on all of them: the dealing must
/// follow the ranks' own.
#[test]
fn the_formula_holds_where_one_rank_keeps_everything() {
    let model = model(DType::F32);
    let model_shape = shape(&*model, DType::F32);
    for exchange in EXCHANGES {
        for keeper in 0..3 {
            let mut plan = with_ratio(plan(2, &[30, 25, 40], 4, 3, infoflow(1, 3), exchange), 0.4);
            plan.chunks.iter_mut().for_each(|chunk| chunk.rank = keeper);
            let (outcome, reports) = tributary_tests::run(&model, 3, &plan);
            let formula = bytes::received(&plan, 3, &model_shape, &Selected::from(&outcome));
            let counted: Vec<u64> = reports.iter().map(|report| report.traffic.tensor_bytes_received()).collect();
            assert_eq!(formula, counted, "{exchange:?}, all chunks on rank {keeper}");
        }
    }
}

/// For every owner of a request: the traffic to and from the owner of the query's rows moves with
/// it.
#[test]
fn the_formula_holds_for_every_owner() {
    let model = model(DType::F32);
    let model_shape = shape(&*model, DType::F32);
    let mut moved = 0;
    for (world, request) in [(2, SHAPES[1]), (3, SHAPES[1]), (3, SHAPES[2]), (4, SHAPES[4])] {
        let mut plans = plans(&*model, request, world);
        let mut of_owners = Vec::new();
        for owner in 0..world {
            plans.iter_mut().for_each(|plan| plan.owner = owner);
            let runs = run_all(&model, Kernels::Auto, world, &plans);
            let mut counts = Vec::new();
            for ((outcome, reports), plan) in runs.iter().zip(&plans) {
                let formula = bytes::received(plan, world, &model_shape, &Selected::from(outcome));
                let counted: Vec<u64> = reports.iter().map(|report| report.traffic.tensor_bytes_received()).collect();
                let what = format!("{:?} {:?}, budget {}", plan.method, plan.exchange, plan.budget);
                assert_eq!(formula, counted, "{what}, owner {owner} of {world}, {request:?}");
                counts.push(counted);
            }
            of_owners.push(counts);
        }
        let differ = |plan: usize| of_owners.iter().any(|counts| counts[plan] != of_owners[0][plan]);
        moved += (0..plans.len()).filter(|&plan| differ(plan)).count();
    }
    assert!(moved > 100, "only {moved} plans depend on their owner");
}

/// Before the selection is known, the prediction is that of an even one: near, and exact where the
/// selection does not matter.
#[test]
fn what_is_expected_is_near_what_comes() {
    let model = model(DType::F32);
    let model_shape = shape(&*model, DType::F32);
    for exchange in EXCHANGES {
        let case = Case { prefix: 1, lead: &[], chunks: &[64; 8], query: 8, world: 4, exchange, ratio: 0.25 };
        for Sample { spec, plan } in case.selecting("", &*model) {
            let (outcome, reports) = tributary_tests::run(&model, 4, &plan);
            if outcome.rounds.len() > 1 {
                continue; // chains are not expected
            }
            let counted: u64 = reports.iter().map(|report| report.traffic.tensor_bytes_received()).sum();
            let expected: u64 = bytes::expected(&plan, 4, &model_shape).iter().sum();
            if outcome.selected.len() < plan.budget {
                // The contiguous part of the budget is unknown: all of it is the maximum.
                assert!(counted <= expected, "{:?} {exchange:?}: {expected}, and {counted} came", spec);
                continue;
            }
            let ratio = expected as f64 / counted as f64;
            // Evenly spread rows are expected; those that the last rows of the query like lie
            // closer together.
            let bound = if plan.method.evidence().is_some_and(|way| way.recency.is_some()) { 0.1 } else { 0.05 };
            assert!((ratio - 1.0).abs() < bound, "{:?} {exchange:?}: {expected} of {counted}", plan.method);
            // Rows that are measured go to their keepers, and the others do not.
            let measures = plan.method.evidence().is_some_and(|way| way.pass_divisor.is_some() || way.trace.is_some());
            if exchange == Exchange::Replicate && !measures && outcome.order.is_sorted() {
                assert_eq!(expected, counted, "{spec}: the sum does not depend on who computes a row");
            }
        }
    }
}
