//! The planner's table: facts of groups, and the resulting plans.

use tributary_protocol::{ChunkCacheReport, ChunkKey};

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
