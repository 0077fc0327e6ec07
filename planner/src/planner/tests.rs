//! The planner's table: facts of groups, and the resulting plans.

use tributary_methods::ModelFacts;
use tributary_protocol::{ChunkCacheReport, ChunkKey, Returns};

use super::*;
use crate::Error;
use crate::machine::MemoryOf;
use crate::shape::tests::DEMO;

const MACHINE: Machine = Machine {
    flops_per_s: 1e10,
    link_bytes_per_s: 4e9,
    memory: MemoryOf::Host,
    available_bytes: Some(1 << 30),
    ranks_here: 2,
    weight_copies: 1,
    of_rank: None,
};

const TWO: GroupShape = GroupShape { world: 2, threads: 1 };

fn planner(side_by_side: bool) -> Planner {
    let mut planner = Planner::new(DEMO, vec![2], None, side_by_side);
    planner.survey(TWO, GroupSurvey { machine: MACHINE, memories: 1 });
    planner
}

fn request() -> Tokens {
    let chunk = |first: u32| (first..first + 32).collect();
    Tokens { prefix: vec![1], chunks: vec![chunk(3), chunk(40), chunk(80)], query: vec![5, 6], ..Tokens::default() }
}

fn settings() -> RequestSettings {
    RequestSettings { world: 2, keep_chunks: true, ..RequestSettings::default() }
}

fn space() -> KeySpace {
    KeySpace::new([7; 32], "f32")
}

fn started(narrowest: Option<(usize, FreeMemory)>) -> Started {
    Started { space: space(), chunk_cache_bytes: 5000, message_bytes: 0, inventory: Vec::new(), narrowest }
}

/// Rank 1 has kept the request's first chunk.
fn reports(request: &Tokens) -> Vec<RankReport> {
    let key = space().chunk(&request.prefix, &request.chunks[0], &[]);
    let report = |rank, stored: Vec<ChunkKey>, used_bytes| RankReport {
        rank,
        chunk_cache: ChunkCacheReport { stored, used_bytes, ..ChunkCacheReport::default() },
        ..RankReport::default()
    };
    vec![report(0, Vec::new(), 0), report(1, vec![key], 4096)]
}

fn warm(planned: &Planned) -> Vec<(usize, bool)> {
    planned.plan.chunks.iter().map(|chunk| (chunk.rank, chunk.warm)).filter(|(_, warm)| *warm).collect()
}

#[test]
fn requests_are_numbered_and_find_kept_chunks_until_the_group_ends() {
    let (mut planner, request) = (planner(true), request());
    assert_eq!(planner.check(request.clone(), &settings(), 1, None).unwrap().plan.request, 0, "a check is no request");
    planner.started(TWO, started(None));
    let cold = planner.plan(request.clone(), &settings(), 1).unwrap();
    assert_eq!((cold.plan.request, warm(&cold)), (1, vec![]));
    planner.note(TWO, &reports(&request));
    let found = planner.plan(request.clone(), &settings(), 1).unwrap();
    assert_eq!((found.plan.request, warm(&found)), (2, vec![(1, true)]));
    planner.ended(TWO);
    assert_eq!(warm(&planner.plan(request.clone(), &settings(), 1).unwrap()), [], "what was kept is gone");
}

#[test]
fn a_check_may_count_the_chunks_of_another_as_kept() {
    let (planner, request) = (planner(true), request());
    let before = planner.check(request.clone(), &settings(), 1, None).unwrap();
    let after = planner.check(request.clone(), &settings(), 1, Some(&before)).unwrap();
    let ranks: Vec<usize> = before.plan.chunks.iter().map(|chunk| chunk.rank).collect();
    assert_eq!(after.plan.chunks.iter().map(|chunk| chunk.rank).collect::<Vec<_>>(), ranks);
    assert!(after.plan.chunks.iter().all(|chunk| chunk.warm));
}

#[test]
fn full_chunk_caches_count_where_requests_leave_chunks_behind() {
    let (mut planner, request) = (planner(true), request());
    let alone = planner.check(request.clone(), &settings(), 1, None).unwrap().memory_bytes;
    planner.keep_chunks(&[4, 2, 4]);
    let four = GroupShape { world: 4, threads: 1 };
    assert_eq!(planner.unsurveyed(TWO), [four]);
    planner.survey(four, GroupSurvey { machine: Machine { ranks_here: 4, ..MACHINE }, memories: 1 });
    assert_eq!(planner.unsurveyed(TWO), []);
    // Half of a quarter of the free memory for each of two groups, divided among its ranks.
    let (own, others) = (planner.chunk_cache_bytes(TWO), planner.chunk_cache_bytes(four));
    assert_eq!((own, others), ((1 << 30) / 4 / 4, (1 << 30) / 4 / 8));
    let beside_full = planner.check(request.clone(), &settings(), 1, None).unwrap().memory_bytes;
    assert_eq!(beside_full, alone + 2 * own + 4 * others);
}

#[test]
fn groups_that_are_processes_do_not_share_chunk_caches() {
    let mut planner = planner(false);
    planner.keep_chunks(&[2, 3]);
    assert_eq!(planner.chunk_cache_bytes(TWO), (1 << 30) / 4 / 2);
    planner.started(TWO, started(None));
    assert_eq!(planner.chunk_cache_bytes(TWO), 5000, "what it was given when it started");
}

#[test]
fn a_plan_must_fit_where_there_is_least() {
    let (mut planner, request) = (planner(false), request());
    planner.started(TWO, started(Some((0, FreeMemory { available_bytes: Some(1 << 29), ranks: 9 }))));
    assert_eq!(planner.machine(TWO), Machine { available_bytes: Some(1 << 29), ..MACHINE }, "its own ranks stay");
    let narrow = FreeMemory { available_bytes: Some(1000), ranks: 3 };
    planner.started(TWO, started(Some((1, narrow))));
    assert_eq!(planner.machine(TWO), narrow.of_rank(1, &MACHINE));
    let error = planner.plan(request.clone(), &settings(), 1).unwrap_err();
    assert!(matches!(error, Error::Memory { rank: Some(1), available_bytes: 1000, .. }), "{error}");
    planner.ended(TWO);
    assert_eq!(planner.machine(TWO).of_rank, Some(1), "processes do not start anew");
}

#[test]
fn the_first_survey_counts_and_messages_take_of_it() {
    let mut planner = planner(true);
    planner.survey(TWO, GroupSurvey { machine: Machine { available_bytes: Some(1), ..MACHINE }, memories: 1 });
    assert_eq!(planner.machine(TWO), MACHINE);
    planner.started(TWO, Started { message_bytes: 100, ..started(None) });
    assert_eq!(planner.machine(TWO).available_bytes, Some((1 << 30) - 200));
}

#[test]
fn a_prompt_goes_to_the_rank_that_has_most_of_its_prefix() {
    let chunks = [3, 40, 80].map(|first| (first..first + 64).map(|id| id % 100).collect());
    let (mut planner, request) = (planner(true), Tokens { chunks: chunks.into(), ..request() });
    planner.started(TWO, started(None));
    let method = tributary_protocol::METHODS.into_iter().find(|method| method.reuses_prefix()).expect("a method");
    let settings = RequestSettings { method, cache_scope: Some(3), ..settings() };
    let cold = planner.plan(request.clone(), &settings, 1).unwrap();
    assert_eq!((cold.plan.owner, cold.plan.reused_rows, cold.plan.keep_chunks), (1, 0, true));
    // Rank 1, the usual owner, has nothing; rank 0 has the first two of four pieces, and the last.
    let keys: Vec<ChunkKey> = cold.plan.prompt_pieces(&space()).into_iter().map(|piece| piece.key).collect();
    let mut reports = reports(&request);
    reports[1].chunk_cache.stored.clear();
    reports[0].chunk_cache.stored = vec![keys[0], keys[1], keys[3]];
    planner.note(TWO, &reports);
    let mut planned = |settings: &RequestSettings| {
        let plan = planner.plan(request.clone(), settings, 1).unwrap().plan;
        (plan.owner, plan.reused_rows)
    };
    assert_eq!(planned(&settings), (0, 2 * 64));
    assert_eq!(planned(&RequestSettings { owner: Some(1), ..settings.clone() }), (0, 128), "the owner is a proposal");
    assert_eq!(
        planned(&RequestSettings { reuse: 0.4, ..settings.clone() }),
        (1, 0),
        "a third is not worth another rank"
    );
    assert_eq!(planned(&RequestSettings { reuse: 0.0, ..settings.clone() }), (1, 0));
    assert_eq!(planned(&RequestSettings { cache_scope: None, ..settings.clone() }), (1, 0), "another scope");
    assert_eq!(planned(&RequestSettings { from_store: true, ..settings.clone() }), (1, 0), "nothing is stored");
    // All of it: the query too where that is meant, but for the last row.
    reports[0].chunk_cache.stored = keys;
    planner.note(TWO, &reports);
    let mut planned = |settings: &RequestSettings| planner.plan(request.clone(), settings, 1).unwrap().plan.reused_rows;
    assert_eq!(planned(&settings), 1 + 3 * 64);
    let with_query = RequestSettings { reuses_query: true, ..settings.clone() };
    assert_eq!(planned(&with_query), 1 + 3 * 64 + 1);
    let scored = Returns { prompt_logprobs: Some(1), ..Returns::default() };
    assert_eq!(planned(&RequestSettings { returns: scored, ..with_query }), 1 + 3 * 64, "logits of the whole query");
    reports[0].chunk_cache.stored.clear();
    reports[0].chunk_cache.evicted = vec![cold.plan.prompt_pieces(&space())[1].key];
    planner.note(TWO, &reports);
    let plan = planner.plan(request, &settings, 1).unwrap().plan;
    assert_eq!((plan.owner, plan.reused_rows), (1, 0), "one piece is left, and is not worth another rank");
}

#[test]
fn cached_rows_are_not_to_be_computed_and_recomputed_ones_are() {
    let (mut planner, request) = (planner(true), request());
    planner.started(TWO, started(None));
    let usual = RequestSettings { reuse: 1.0, reuses_query: true, ..settings() };
    let named = |name: &str| usual.clone().set(&name.parse().expect("a method"));
    let rows = |planner: &Planner, name: &str| {
        let draft = planner.draft(request.clone(), &named(name), 1).expect("a draft");
        planner.rows_to_compute(&draft, TWO)
    };
    // A prefix of 1, three documents of 32, and a query of 2; 15 % of the context are recomputed.
    let all = 1 + 96 + 2;
    assert_eq!(["full", "prefix-cache", "infoflow"].map(|name| rows(&planner, name)), [all, all, all + 14]);
    let (mut reports, plan) = (reports(&request), planner.plan(request.clone(), &named("prefix-cache"), 1).unwrap());
    reports[0].chunk_cache.stored = vec![plan.plan.prompt_pieces(&space())[0].key];
    planner.note(TWO, &reports);
    let expected = [all, all - 64, all - 32 + 14];
    assert_eq!(["full", "prefix-cache", "infoflow"].map(|name| rows(&planner, name)), expected);
}

#[test]
fn documents_come_in_the_order_of_which_most_is_cached() {
    let document = |first: u32| -> Vec<u32> { (first..first + 80).map(|id| id % 100).collect() };
    let [a, b, c, d] = [3, 20, 50, 90].map(document);
    let mut planner = planner(true);
    planner.started(TWO, started(None));
    let asked = |chunks: &[&Vec<u32>]| Tokens { chunks: chunks.iter().copied().cloned().collect(), ..request() };
    let method = |orders| {
        let all = tributary_protocol::METHODS.into_iter().filter(|method| method.reuses_prefix());
        let settings = |method| RequestSettings { method, ..settings() };
        all.map(settings).find(|settings| {
            settings.method(ModelFacts::new(4, 2)).is_ok_and(|(method, _)| method.orders_chunks() == orders)
        })
    };
    let (in_order, ordered) = (method(false).expect("one"), method(true).expect("another"));
    let mut store = |rank: usize, chunks: &[&Vec<u32>]| {
        let plan = planner.plan(asked(chunks), &in_order, 1).unwrap().plan;
        let keys = plan.prompt_pieces(&space()).into_iter().map(|piece| piece.key).collect();
        let mut reports = reports(&request());
        reports[1].chunk_cache.stored.clear();
        reports[rank].chunk_cache.stored = keys;
        planner.note(TWO, &reports);
    };
    store(0, &[&b, &a, &c]);
    let mut plan = |chunks: &[&Vec<u32>]| planner.plan(asked(chunks), &ordered, 1).unwrap().plan;
    let found = plan(&[&d, &a, &b]);
    assert_eq!((&found.order[..], found.owner, found.reused_rows), (&[2, 1, 0][..], 0, 128), "b, a, then the new one");
    let found = plan(&[&a, &d, &c, &b]);
    assert_eq!((&found.order[..], found.reused_rows), (&[3, 0, 2, 1][..], 192), "up to the last whole piece of c");
    let found = plan(&[&d, &c]);
    assert_eq!((&found.order[..], found.owner, found.reused_rows), (&[0, 1][..], 1, 0), "nothing begins like these");
}
