//! Eviction after every kind of prefill: the same rows are kept and the same tokens follow in every
//! world, for every place of the kept rows; nothing changes where all is kept; bytes follow their
//! formula.

use std::slice::from_ref;
use std::sync::Arc;

use candle_core::DType;
use tributary_model::{Model, in_eight_bits};
use tributary_planner::cost::bytes::Cargo;
use tributary_planner::cost::evicting::Evicting;
use tributary_protocol::{EVICTIONS, Eviction, EvictionDescriptor, Exchange, Plan, Prefill, RankReport};
use tributary_tests::samples::{Case, Sample};
use tributary_tests::side_by_side::differing;
use tributary_tests::{dummy_model, gemma, glm_with_experts, gpt_oss, group, run_one, shape};

const KEEP: usize = 24;

/// Experts take rows one by one, kept or not.
fn model() -> Arc<dyn Model> {
    dummy_model(&glm_with_experts(), 11)
}

fn case(world: usize, exchange: Exchange, lead: &'static [u32]) -> Case<'static> {
    Case { prefix: 2, lead, chunks: &[21, 14, 30, 9], query: 5, world, exchange, ratio: 0.3 }
}

/// A sample of a method, and an eviction that goes with it.
struct Pair {
    /// Number of the sample and number of the eviction together: by it worlds and exchanges take
    /// turns.
    turn: usize,
    spec: String,
    eviction: &'static EvictionDescriptor,
    /// Whether the method itself drops rows.
    drops: bool,
}

/// Every sample with every eviction that the program lets it have. Without an adapter none looks
/// ahead; blocks are parts of the world unless their length is given.
fn pairs(model: &dyn Model) -> Vec<Pair> {
    let samples = case(1, Exchange::PassQ, &[]).samples("", model);
    let in_any_world =
        |sample: &Sample| !matches!(sample.plan.method.prefill, Prefill::Anchored { block_rows: None, .. });
    let mut pairs = Vec::new();
    for (number, Sample { spec, plan }) in samples.into_iter().filter(in_any_world).enumerate() {
        for (other, eviction) in EVICTIONS.into_iter().enumerate() {
            let pair = Pair { turn: number + other, spec: spec.clone(), eviction, drops: plan.drops() };
            pairs.extend(pair.asked(1, KEEP, model).map(|_| pair));
        }
    }
    assert!(EVICTIONS.iter().filter(|way| pairs.iter().any(|pair| pair.eviction.name == way.name)).count() >= 9);
    pairs
}

impl Pair {
    /// The plan that keeps `keep` rows, in one exchange or the other.
    fn asked(&self, world: usize, keep: usize, model: &dyn Model) -> Option<Plan> {
        let exchange = [Exchange::Replicate, Exchange::PassQ][self.turn / 3 % 2];
        let spec = format!("{}:evict=[{}:window=8]:keep={keep}", self.spec, self.eviction.name);
        // Leads take turns.
        let lead: &[u32] = if self.turn.is_multiple_of(2) { &[] } else { &[1] };
        let mut plan = case(world, exchange, lead).planned(&spec, model).ok()?;
        plan.max_tokens = 6;
        plan.evict.iter_mut().for_each(|evict| evict.pseudo = 4);
        Some(plan)
    }

    /// The same for the world whose turn it is, gathered on the owner or not.
    fn gathered(&self, world: usize, gather: bool, model: &dyn Model) -> Plan {
        let mut plan = self.asked(world, KEEP, model).expect("it goes with the sample in one rank");
        plan.evict.iter_mut().for_each(|evict| evict.gather = gather);
        plan
    }
}

#[test]
fn every_world_keeps_what_one_rank_keeps_and_generates_the_same() {
    let model = model();
    let ones = group(&model, 1);
    let pairs = pairs(&*model);
    for world in 2..=4 {
        let ranks = group(&model, world);
        for pair in pairs.iter().filter(|pair| pair.turn % 3 == world - 2) {
            let expected = run_one(&ones, &pair.gathered(1, false, &*model)).0;
            for gather in [false, true] {
                let plan = pair.gathered(world, gather, &*model);
                let (found, reports) = run_one(&ranks, &plan);
                let what = format!("{}, {}, world {world}, gathered {gather}", pair.spec, pair.eviction.name);
                assert!(expected.kept.is_some(), "{what}");
                assert_eq!(found.kept, expected.kept, "{what}");
                differing(from_ref(&plan), from_ref(&expected), &[found]);
                freed(&plan, &reports, world, &what);
            }
        }
        ranks.end().expect("the group ends well");
    }
    ones.end().expect("the group ends well");
}

/// Checks that the ranks' kept rows are the budget, on the owner where it has everything.
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
    // Of an excerpt few rows are there.
    let least = if plan.method.excerpts() { kept + 1 } else { 2 * kept };
    assert!(before >= least, "{what}: {kept} of {before}");
}

#[test]
fn nothing_changes_where_everything_is_kept() {
    let model = in_eight_bits(dummy_model(&gemma(), 11));
    let pairs = pairs(&*model);
    for world in [1, 3] {
        let ranks = group(&model, world);
        for pair in pairs.iter().filter(|pair| pair.turn % 3 == world / 2) {
            let all = pair.asked(world, pair.gathered(world, true, &*model).total_rows(), &*model).expect("a plan");
            assert!(all.evict.is_some());
            let expected = run_one(&ranks, &Plan { evict: None, ..all.clone() }).0;
            let (found, reports) = run_one(&ranks, &all);
            assert_eq!(found, expected, "{} after {}, world {world}", pair.eviction.name, pair.spec);
            assert!(reports.iter().all(|report| report.evicted.is_none()));
        }
        ranks.end().expect("the group ends well");
    }
}

#[test]
fn bytes_of_an_eviction_follow_their_formula_on_every_rank() {
    let model = dummy_model(&gpt_oss(), 11);
    let (shape, pairs) = (shape(&*model, DType::F32), pairs(&*model));
    for world in 2..=4 {
        let ranks = group(&model, world);
        for pair in pairs.iter().filter(|pair| pair.turn % 3 == world - 2 && !pair.drops) {
            // The rows that a draft keeps may be on other ranks than the final ones: then only even
            // spreading is counted.
            let gather = (pair.turn / 6).is_multiple_of(2);
            let plan = pair.gathered(world, gather, &*model);
            let draft = matches!(pair.eviction.method, Eviction::Laq | Eviction::Ideal) && gather;
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
                "{} after {}, {:?}, world {world}, gathered {gather}",
                pair.eviction.name, pair.spec, plan.exchange
            );
            for rank in (0..world).filter(|&rank| !(draft && rank == plan.owner)) {
                assert_eq!(received[rank], counted.received()[rank], "{what}, rank {rank}");
            }
        }
        ranks.end().expect("the group ends well");
    }
}
