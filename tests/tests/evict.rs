//! Eviction behind every kind of prefill: the same rows are kept and the same tokens follow in every world, wherever kept rows lie;
//! nothing changes where all is kept; bytes follow their formula.

use std::slice::from_ref;
use std::sync::Arc;

use candle_core::DType;
use tributary_coordinator::cost::bytes::Cargo;
use tributary_coordinator::cost::evicting::Evicting;
use tributary_protocol::{
    Ape, EVICTIONS, Evict, Eviction, EvictionEvidence, Exchange, Method, Plan, RankReport, SamKvVariant,
};
use tributary_tests::side_by_side::differing;
use tributary_tests::{
    dummy_model, group, infoflow, plan, run_one, samkv, shape, tiny_config, with_ratio, written_by_itself,
};
use tributary_worker::Model;

/// Prefix, chunk lengths, query length.
const SHAPE: (usize, &[usize], usize) = (2, &[21, 14, 30, 9], 5);
const KEEP: usize = 24;

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 11)
}

fn evict(method: Eviction, gather: bool) -> Evict {
    Evict { method, keep: KEEP, window: 8, pooled: 7, sinks: 4, beta: 20, pseudo: 4, seed: 2, gather }
}

/// All but the one that needs an adapter.
fn evictions() -> impl Iterator<Item = Eviction> {
    let able = EVICTIONS.iter().filter(|entry| entry.evidence != EvictionEvidence::LookAhead);
    able.map(|entry| entry.method)
}

/// Ways to fill a cache that leave it on one rank or on all.
fn ways() -> Vec<(Method, Exchange)> {
    let chunked = [Exchange::Replicate, Exchange::PassQ].map(|exchange| (infoflow(1, 3), exchange));
    let whole = [
        Method::Full,
        Method::Ring,
        Method::AllGather { heads_per_gather: None },
        Method::Star { block_tokens: Some(20) },
    ];
    let whole = whole.into_iter().map(|method| (method, Exchange::Replicate));
    let dropping = (samkv(SamKvVariant::Small, 0.9), Exchange::PassQ);
    whole.chain(chunked).chain([dropping]).collect()
}

fn asked(way: &(Method, Exchange), world: usize, evict: Option<Evict>) -> Plan {
    let (method, exchange) = way.clone();
    let plan = plan(SHAPE.0, SHAPE.1, SHAPE.2, world, method, exchange);
    let plan = if plan.method.selection().is_some() { with_ratio(plan, 0.3) } else { plan };
    Plan { max_tokens: 6, evict, draft_model: Some(written_by_itself()), ..plan }
}

#[test]
fn every_world_keeps_what_one_rank_keeps_and_generates_the_same() {
    let model = model();
    let ones = group(&model, 1);
    let mut compared = 0;
    for world in 2..=4 {
        let ranks = group(&model, world);
        for way in ways() {
            for method in evictions() {
                let expected = run_one(&ones, &asked(&way, 1, Some(evict(method, false)))).0;
                for gather in [false, true] {
                    let plan = asked(&way, world, Some(evict(method, gather)));
                    let (found, reports) = run_one(&ranks, &plan);
                    let what = format!("{method:?} behind {}, world {world}, gathered {gather}", plan.method.name());
                    assert!(expected.kept.is_some(), "{what}");
                    assert_eq!(found.kept, expected.kept, "{what}");
                    differing(from_ref(&plan), from_ref(&expected), &[found]);
                    freed(&plan, &reports, world, &what);
                    compared += 1;
                }
            }
        }
        ranks.end().expect("the group ends well");
    }
    ones.end().expect("the group ends well");
    assert_eq!(compared, 3 * ways().len() * evictions().count() * 2);
}

/// What ranks keep is the budget, on the owner where it has everything.
fn freed(plan: &Plan, reports: &[RankReport], world: usize, what: &str) {
    let parts: Vec<_> = reports.iter().map(|report| report.evicted.expect("rows were evicted")).collect();
    let kept: u64 = parts.iter().map(|part| part.rows_kept).sum();
    assert_eq!(kept % KEEP as u64, 0, "{what}");
    let entries = kept / KEEP as u64;
    for (rank, part) in parts.iter().enumerate() {
        if plan.generates_alone(world) && rank != plan.owner {
            assert_eq!((part.rows_kept, part.bytes_kept), (0, 0), "{what}, rank {rank}");
        }
        if plan.decodes_alone(world) && rank == plan.owner {
            let share = part.bytes_kept as f64 / part.bytes_before as f64;
            let rows = part.rows_before as f64 / entries as f64;
            assert!((share - KEEP as f64 / rows).abs() < 0.05, "{what}: {share} of {rows} rows");
        }
    }
    let before: u64 = parts.iter().map(|part| part.rows_before).sum();
    assert!(before >= 2 * kept, "{what}: {kept} of {before}");
}

#[test]
fn contexts_beside_each_other_forget_rows_alike_in_every_world() {
    let (model, way) = (model(), (Method::Ape(Ape::default()), Exchange::PassQ));
    for method in [Eviction::Random, Eviction::StreamingLlm] {
        let mut of_one = None;
        for world in 1..=3 {
            for gather in [false, true] {
                let ranks = group(&model, world);
                let plan = asked(&way, world, Some(evict(method, gather)));
                let found = run_one(&ranks, &plan).0;
                ranks.end().expect("the group ends well");
                let expected = of_one.get_or_insert_with(|| found.clone());
                assert_eq!(found.kept, expected.kept, "{method:?}, world {world}");
                differing(&[plan], from_ref(expected), &[found]);
            }
        }
    }
}

#[test]
fn nothing_changes_where_everything_is_kept() {
    let model = model();
    for world in [1, 3] {
        let ranks = group(&model, world);
        for way in ways() {
            let bare = asked(&way, world, None);
            let expected = run_one(&ranks, &bare).0;
            for method in evictions() {
                let all = Evict { keep: bare.total_rows(), ..evict(method, true) };
                let (found, reports) = run_one(&ranks, &asked(&way, world, Some(all)));
                assert_eq!(found, expected, "{method:?} behind {}, world {world}", bare.method.name());
                assert!(reports.iter().all(|report| report.evicted.is_none()));
            }
        }
        ranks.end().expect("the group ends well");
    }
}

#[test]
fn bytes_of_an_eviction_follow_their_formula_on_every_rank() {
    let model = model();
    let shape = shape(&*model, DType::F32);
    for world in 2..=4 {
        let ranks = group(&model, world);
        for way in ways().into_iter().filter(|(method, _)| method.sparse().is_none()) {
            for (method, gather) in evictions().flat_map(|method| [(method, false), (method, true)]) {
                // A draft of what is kept may lie elsewhere than what is: then only even spreading is counted.
                let plan = asked(&way, world, Some(evict(method, gather)));
                let draft = matches!(method, Eviction::Laq | Eviction::Ideal) && gather;
                let (found, reports) = run_one(&ranks, &plan);
                let mut counted = Evicting::new(&plan, world, &shape).expect("it evicts");
                let holders = plan.holders(world);
                let elsewhere = found.kept.iter().flat_map(|kept| &kept.0).flatten().flatten();
                let elsewhere = elsewhere.filter(|&&row| holders[row as usize] != plan.owner).count() as u64;
                let row_bytes = shape.kv_bytes() / (shape.layers * shape.kv_heads) as u64;
                for flow in counted.flows.iter_mut().filter(|flow| flow.cargo == Cargo::Kept) {
                    flow.received[plan.owner] = elsewhere * row_bytes;
                }
                let received: Vec<u64> =
                    reports.iter().map(|report| report.evicted.expect("evicted").received_bytes).collect();
                let what = format!(
                    "{method:?} behind {}, {:?}, world {world}, gathered {gather}",
                    plan.method.name(),
                    plan.exchange
                );
                for rank in (0..world).filter(|&rank| !(draft && rank == plan.owner)) {
                    assert_eq!(received[rank], counted.received()[rank], "{what}, rank {rank}");
                }
            }
        }
        ranks.end().expect("the group ends well");
    }
}
