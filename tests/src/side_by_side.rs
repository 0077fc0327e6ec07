//! Requests side by side on one group of ranks, whatever ranks are: all that the loop does, and what must come of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tributary_comm::CoordinatorLink;
use tributary_coordinator::Clock;
use tributary_coordinator::dispatch::{self, InFlight};
use tributary_protocol::{
    Ape, Drift, Event, Evict, Eviction, Exchange, Layout, METHODS, Method, Order, Outcome, Passing, Plan, SamKvVariant,
    Selection,
};

use crate::{PATIENCE, can_reorder, eager_trace, halved, infoflow, plan, reordered, samkv, sharp_trace, with_ratio};

/// Choices that two ways of computing the same logits may make differently.
const NEAR_TIE: f32 = 1e-4;

/// Every method and exchange, with lengths of their own and numbers from 1 on.
///
/// # Panics
/// If a method is missing.
pub fn plans(world: usize, keep_chunks: bool) -> Vec<Plan> {
    let layout = Layout::Global;
    let chunked = [
        Method::None,
        Method::Random { seed: 3 },
        Method::Epic { per_chunk: None },
        infoflow(1, 3),
        Method::ProphetKv { layout },
        Method::Relay { layout },
        Method::A3 { layout },
        Method::CacheBlend(Drift::default()),
        Method::KvShare,
        Method::Ideal,
        Method::CacheClip,
        Method::KvPacket,
        samkv(SamKvVariant::Small, 0.9),
        Method::Ape(Ape::default()),
        eager_trace(),
        sharp_trace(),
    ];
    let split = [Method::Full, Method::Ring, Method::AllGather { heads_per_gather: None }, Method::PassQ];
    let apb =
        Method::Apb { block_tokens: Some(8), passing: Passing { anchor_tokens: Some(3), passing_tokens: Some(2) } };
    let split = split.into_iter().chain([Method::Star { block_tokens: None }, apb]);
    let exchanges = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];
    let of_chunks = chunked.iter().flat_map(|method| exchanges.map(|exchange| (method.clone(), exchange)));
    let all = of_chunks.chain(split.map(|method| (method, Exchange::Replicate)));
    let make = |(index, (method, exchange)): (usize, (Method, Exchange))| {
        let lengths = [9 + index % 4, 17, 5 + index % 3];
        let recomputes = !matches!(method.selection(), None | Some(Selection::Nothing | Selection::Parallel(_)));
        let reorders = can_reorder(&method) && index % 2 == 0;
        let made = plan(2, &lengths, 4, world, method, exchange);
        let made = if recomputes { with_ratio(made, 0.3) } else { made };
        let made = if reorders { reordered(made) } else { made };
        Plan { request: index as u64 + 1, max_tokens: 3 + index % 7, keep_chunks, ..made }
    };
    let mut plans: Vec<Plan> = all.enumerate().map(make).collect();
    plans.extend(evicting(world, keep_chunks, plans.len()));
    plans.extend(compressing(world, keep_chunks, plans.len()));
    for method in METHODS {
        assert!(plans.iter().any(|plan| plan.method.name() == method.name), "{} is missing", method.name);
    }
    plans
}

/// Plans whose chunks keep a half of their tokens.
fn compressing(world: usize, keep_chunks: bool, before: usize) -> Vec<Plan> {
    let exchanges = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];
    let ways = [Method::None, infoflow(1, 3)].into_iter().flat_map(|method| exchanges.map(|way| (method.clone(), way)));
    let make = |(index, (method, exchange)): (usize, (Method, Exchange))| {
        let made = plan(2, &[9, 17, 6 + index], 4, world, method, exchange);
        let made = if made.method.evidence().is_some() { with_ratio(made, 0.3) } else { made };
        let plan = halved(made);
        Plan { request: (before + index) as u64 + 1, max_tokens: 3 + index % 4, keep_chunks, ..plan }
    };
    ways.enumerate().map(make).collect()
}

/// Plans that forget some of their prompt behind the first token, gathered on the owner or not.
fn evicting(world: usize, keep_chunks: bool, before: usize) -> Vec<Plan> {
    let ways = [
        (Method::Full, Eviction::SnapKv),
        (Method::Ring, Eviction::StreamingLlm),
        (Method::Star { block_tokens: None }, Eviction::H2o),
        (infoflow(1, 3), Eviction::PyramidKv),
        (Method::None, Eviction::Tova),
        (Method::Ape(Ape::default()), Eviction::Random),
        (Method::PassQ, Eviction::Laq),
    ];
    let make = |(index, (way, gather)): (usize, (&(Method, Eviction), bool))| {
        let (method, eviction) = way.clone();
        let evict =
            Evict { method: eviction, keep: 12, window: 4, pooled: 3, sinks: 4, beta: 20, pseudo: 3, seed: 1, gather };
        let made = plan(2, &[9 + index % 4, 17, 5], 4, world, method, Exchange::PassQ);
        let recomputes = matches!(made.method.selection(), Some(Selection::Evidence(_)));
        let made = if recomputes { with_ratio(made, 0.3) } else { made };
        Plan {
            request: (before + index) as u64 + 1,
            max_tokens: 3 + index % 5,
            keep_chunks,
            evict: Some(evict),
            ..made
        }
    };
    ways.iter().flat_map(|way| [(way, false), (way, true)]).enumerate().map(make).collect()
}

/// Compares tokens; the requests and the places of the tokens that differ at a near tie.
///
/// # Panics
/// If a token differs where there was no near tie.
pub fn differing(plans: &[Plan], alone: &[Outcome], together: &[Outcome]) -> Vec<(u64, usize)> {
    assert_eq!((plans.len(), plans.len()), (alone.len(), together.len()));
    let mut ties = Vec::new();
    for ((plan, alone), together) in plans.iter().zip(alone).zip(together) {
        let Some(first) = (0..alone.tokens.len()).find(|&at| alone.tokens[at] != together.tokens[at]) else { continue };
        let margin = alone.margins[first];
        let (request, method) = (plan.request, plan.method.name());
        assert!(margin < NEAR_TIE, "request {request}, {method}: token {first} differs, margin {margin:e}");
        ties.push((request, first));
    }
    ties
}

/// Runs plans one after the other, each alone.
pub fn run_alone(link: &CoordinatorLink, plans: &[Plan]) -> Vec<Outcome> {
    let run = |plan: &Plan| {
        dispatch::run(link, &Arc::new(plan.clone()), &Clock::start(), &mut |_| {}).expect("the plan runs").outcome
    };
    plans.iter().map(run).collect()
}

/// Plans as they are asked once their chunks are kept.
pub fn warm(plans: &[Plan]) -> Vec<Plan> {
    let warm = |plan: &Plan| {
        let mut warm = plan.clone();
        warm.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
        warm
    };
    plans.iter().map(warm).collect()
}

/// Runs every method and exchange on a group of `world` ranks, one after the other and side by side: cold, keeping chunks, and
/// with chunks that were kept. Of how many tokens it compared, the requests and places of those that differ at near ties.
///
/// # Panics
/// If an answer differs otherwise, or more than one token in a hundred.
pub fn side_by_side_equals_alone(link: &CoordinatorLink, world: usize) -> (usize, Vec<(u64, usize)>) {
    let (mut compared, mut ties) = (0, Vec::new());
    let alone = run_alone(link, &plans(world, false));
    let tokens: usize = alone.iter().map(|outcome| outcome.tokens.len()).sum();
    let mut compare = |plans: &[Plan], together: &[Outcome]| {
        compared += tokens;
        ties.extend(differing(plans, &alone, together));
    };
    for keep_chunks in [false, true] {
        let plans = plans(world, keep_chunks);
        let (first, rest) = plans.split_at(5);
        let (second, third) = rest.split_at(1);
        compare(&plans, &run_side_by_side(link, &[first, second, &[], third]));
    }
    let kept = warm(&plans(world, true));
    compare(&kept, &run_side_by_side(link, &[&kept]));
    assert!(100 * ties.len() <= compared, "world {world}: {} of {compared} tokens: {ties:?}", ties.len());
    (compared, ties)
}

/// Runs plans side by side on one group: every plan of `waves` is prefilled while those of the waves before it are decoded, all
/// running sequences in each step. The outcomes are in the order of the plans, which need numbers of their own.
pub fn run_side_by_side(link: &CoordinatorLink, waves: &[&[Plan]]) -> Vec<Outcome> {
    let mut running: Vec<InFlight> = Vec::new();
    let mut done: BTreeMap<u64, Outcome> = BTreeMap::new();
    let mut waves = waves.iter();
    loop {
        let wave = waves.next();
        for plan in wave.copied().unwrap_or_default() {
            running.push(prefilled(link, plan));
        }
        settle(link, &mut running, &mut done);
        if running.is_empty() && wave.is_none() {
            return done.into_values().collect();
        }
        if !running.is_empty() {
            step(link, &mut running);
            settle(link, &mut running, &mut done);
        }
    }
}

/// A plan behind its prefill.
pub fn prefilled(link: &CoordinatorLink, plan: &Plan) -> InFlight {
    let plan = Arc::new(plan.clone());
    let mut request = InFlight::new(&plan, Clock::start(), Duration::ZERO);
    link.send(Order::Prefill(plan)).expect("rank 0 takes the plan");
    loop {
        match event(link) {
            Event::FirstToken { drawn, .. } => request.first_token(&drawn).expect("it comes once"),
            Event::Prefilled { outcome, reports, .. } => {
                request.prefilled(outcome, reports).expect("it fits the first token");
                return request;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// One step of all these sequences.
pub fn step(link: &CoordinatorLink, running: &mut [InFlight]) {
    let requests: Vec<u64> = running.iter().map(|request| request.plan().request).collect();
    link.send(Order::Decode(requests.clone())).expect("rank 0 takes the step");
    let Event::Stepped { tokens, reports } = event(link) else { panic!("a step was due") };
    for ((request, (number, drawn)), expected) in running.iter_mut().zip(tokens).zip(requests) {
        assert_eq!(number, expected, "the order of the step");
        request.next_token(&drawn.expect("finite logits"), &reports, (0, 1));
    }
}

/// Lets the group go of sequences; how many each rank still has.
pub fn release(link: &CoordinatorLink, requests: Vec<u64>) -> Vec<usize> {
    link.send(Order::Release(requests)).expect("rank 0 takes the release");
    let Event::Released { running } = event(link) else { panic!("a release was due") };
    running
}

/// Releases the sequences that are done.
fn settle(link: &CoordinatorLink, running: &mut Vec<InFlight>, done: &mut BTreeMap<u64, Outcome>) {
    let (go_on, ended): (Vec<_>, Vec<_>) = running.drain(..).partition(InFlight::goes_on);
    *running = go_on;
    if ended.is_empty() {
        return;
    }
    release(link, ended.iter().map(|request| request.plan().request).collect());
    for request in ended {
        done.insert(request.plan().request, request.answer().expect("an answer").outcome);
    }
}

fn event(link: &CoordinatorLink) -> Event {
    match link.next(PATIENCE).expect("rank 0 is there") {
        Some(Event::Failed { rank, cause, .. }) => panic!("rank {rank}: {cause}"),
        Some(event) => event,
        None => panic!("no event within {PATIENCE:?}"),
    }
}
