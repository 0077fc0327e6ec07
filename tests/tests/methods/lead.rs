//! A lead between head and first chunk: chunks are the same whatever it says, its first pieces stay
//! warm, the first chunk may be selected after it, and a single chunk is prefilled after all of it.

use std::sync::Arc;

use tributary_model::Model;
use tributary_protocol::{Exchange, Plan, RankReport};
use tributary_tests::equal::{Largest, assert_same_bits};
use tributary_tests::samples::Case;
use tributary_tests::{
    dummy_model, group, kept, logits, open_store, relative_error, run_one, stored_group, tiny_config, warm,
};

const CHUNKS: &[usize] = &[17, 5, 23];
const LEAD: &[u32] = &[4, 6, 2];
const HEAD: usize = 3;

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 11)
}

fn case(chunks: &'static [usize], world: usize, exchange: Exchange) -> Case<'static> {
    let prefix = HEAD + LEAD.iter().sum::<u32>() as usize;
    Case { prefix, lead: LEAD, chunks, query: 6, world, exchange, ratio: 0.3 }
}

/// The plan with another token in this piece of the lead.
fn with_another(mut plan: Plan, piece: usize) -> Plan {
    let row = plan.lead_rows()[piece].start as usize;
    plan.prefix[row] = (plan.prefix[row] + 41) % 96;
    plan
}

fn hits(reports: &[RankReport]) -> usize {
    reports.iter().map(|report| report.chunk_cache.hits).sum()
}

fn computed(reports: &[RankReport]) -> Vec<usize> {
    reports.iter().map(|report| report.prefilled_rows).collect()
}

/// Chunks are hits after any lead; of the lead, the pieces from the first other token on are
/// computed, on every rank.
#[test]
fn chunks_and_first_pieces_stay_warm_after_another_lead() {
    let (model, mut largest) = (model(), Largest::new("lead: warm chunks after another lead = cold"));
    for world in 1..=3 {
        let ranks = group(&model, world);
        for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
            for sample in case(CHUNKS, world, exchange).in_chunks("", &*model) {
                let what = format!("{}, world {world}", sample.what());
                run_one(&ranks, &kept(sample.plan.clone()));
                for piece in 0..LEAD.len() {
                    let other = with_another(sample.plan.clone(), piece);
                    let (found, reports) = run_one(&ranks, &warm(other.clone()));
                    let (expected, _) = run_one(&ranks, &other);
                    let rows: u32 = LEAD[piece..].iter().sum();
                    assert_eq!(hits(&reports), CHUNKS.len(), "{what}, piece {piece}");
                    assert_eq!(computed(&reports), vec![rows as usize; world], "{what}, piece {piece}");
                    largest.check_answer(&found, &expected, &other, &what);
                }
            }
        }
        ranks.end().expect("the group ends well");
    }
}

#[test]
fn pieces_come_from_a_store_as_they_were() {
    let model = model();
    for exchange in [Exchange::Replicate, Exchange::PassQ] {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = case(CHUNKS, 2, exchange).planned("infoflow:layers=1..3", &*model).expect("a plan");
        let run = |plan: &Plan| {
            let store = open_store(folder.path());
            let group = stored_group(&model, 2, &store);
            let found = run_one(&group, plan);
            group.end().expect("the group ends well");
            assert!(store.flush(std::time::Duration::from_secs(20)), "everything is written");
            found
        };
        let cold = run(&kept(plan.clone()));
        let again = run(&warm(plan.clone()));
        assert_same_bits(&again.0, &cold.0, "after a restart");
        assert_eq!((computed(&again.1), hits(&again.1)), (vec![0, 0], CHUNKS.len()));
        let other = run(&warm(with_another(plan.clone(), 2)));
        assert_eq!((computed(&other.1), hits(&other.1)), (vec![2, 2], CHUNKS.len()));
    }
}

/// Behind a lead the first chunk is not exact, and its rows compete with the others'.
#[test]
fn rows_of_the_first_chunk_are_candidates() {
    let model = model();
    let found = case(CHUNKS, 1, Exchange::PassQ).planned("random", &*model).expect("a plan");
    let all: usize = CHUNKS.iter().sum();
    assert_eq!(found.candidate_rows(&found.request_order()).len(), all);
    let without = Plan { lead: Vec::new(), ..found };
    assert_eq!(without.candidate_rows(&without.request_order()).len(), all - CHUNKS[0]);
}

/// The head's chunk is another than the one after the whole prefix.
#[test]
fn one_chunk_is_prefilled_after_the_lead_and_kept_so() {
    let model = model();
    let ranks = group(&model, 1);
    let one = case(&CHUNKS[..1], 1, Exchange::PassQ).planned("infoflow:layers=1..3", &*model).expect("a plan");
    assert!(one.lead.is_empty(), "{:?}", one.lead);
    let full = case(&CHUNKS[..1], 1, Exchange::PassQ).planned("full", &*model).expect("a plan");
    let (found, expected) = (run_one(&ranks, &kept(one.clone())).0, run_one(&ranks, &full).0);
    assert!(relative_error(logits(&found), logits(&expected)) < 1e-4);
    let again = run_one(&ranks, &warm(one.clone()));
    assert_same_bits(&again.0, &found, "the same request again");
    assert_eq!((hits(&again.1), computed(&again.1)), (1, vec![0]));
    let (_, reports) = run_one(&ranks, &warm(with_other_prefix(one)));
    assert_eq!(hits(&reports), 0, "after another system text it is another chunk");
    ranks.end().expect("the group ends well");
}

fn with_other_prefix(mut plan: Plan) -> Plan {
    *plan.prefix.last_mut().expect("a prefix") += 1;
    plan
}
