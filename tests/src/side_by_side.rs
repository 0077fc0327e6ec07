//! Requests side by side on one group of ranks of any kind: the work of the loop, and its required
//! results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tributary_comm::CoordinatorLink;
use tributary_coordinator::Clock;
use tributary_coordinator::dispatch::{self, InFlight};
use tributary_model::Model;
use tributary_protocol::{EVICTIONS, Event, EvictionDescriptor, Exchange, Order, Outcome, Plan, Slices};

use crate::PATIENCE;
use crate::samples::{Case, leads, specs};

/// Choices that two ways of computing the same logits may make differently.
const NEAR_TIE: f32 = 1e-4;

/// The plans of all samples: plain methods with every exchange, other samples with one; and plain
/// methods with the options that they combine with. Lengths differ, and numbers count from 1.
pub fn plans(model: &dyn Model, world: usize, keep_chunks: bool) -> Vec<Plan> {
    let exchanges = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];
    let (mut plans, mut evictions) = (Vec::new(), EVICTIONS.into_iter().cycle());
    for (number, (method, spec)) in specs().enumerate() {
        let chunks = [11 + number % 4, 17, 7 + number % 3];
        // Leads take turns.
        let leads = leads(2);
        let asked = |turn: usize| {
            let (lead, exchange) = (leads[(number + turn) % leads.len()], exchanges[turn % exchanges.len()]);
            Case { prefix: 2, lead, chunks: &chunks, query: 4, world, exchange, ratio: 0.3 }
        };
        let case = asked(number);
        if spec == method.name && method.selects() {
            let planned = |turn| asked(turn).planned(spec, model).expect("no method is refused as it is");
            plans.extend((0..exchanges.len()).map(planned));
        } else {
            plans.push(case.planned(spec, model).expect("no sample is refused as it is"));
        }
        if spec == method.name {
            let combined = [":packets", ":keep-per-chunk=50%"].map(|options| format!("{spec}{options}"));
            plans.extend(combined.iter().flat_map(|spec| case.planned(spec, model)));
            plans.extend(evicting(&case, spec, &mut evictions, model));
        }
    }
    let numbered = |(index, plan): (usize, Plan)| Plan {
        request: index as u64 + 1,
        max_tokens: 3 + index % 7,
        keep_chunks: keep_chunks && plan.method.in_chunks(),
        ..plan
    };
    let plans: Vec<Plan> = plans.into_iter().enumerate().map(numbered).collect();
    let evicts =
        |way: &&EvictionDescriptor| plans.iter().flat_map(|plan| &plan.evict).any(|evict| evict.method == way.method);
    assert_eq!(
        EVICTIONS.iter().filter(|way| evicts(way)).count(),
        EVICTIONS.len() - 1,
        "without an adapter none looks ahead"
    );
    plans
}

/// A plan that evicts rows of its prompt after the first token, by the next eviction that fits the
/// spec; every other one is gathered on the owner.
fn evicting(
    case: &Case<'_>,
    spec: &str,
    evictions: &mut impl Iterator<Item = &'static EvictionDescriptor>,
    model: &dyn Model,
) -> Option<Plan> {
    let planned = |way: &EvictionDescriptor| case.planned(&format!("{spec}:evict={}:keep=12", way.name), model).ok();
    let mut plan = evictions.take(EVICTIONS.len()).find_map(planned)?;
    if let Some(evict) = &mut plan.evict {
        (evict.pseudo, evict.gather) = (evict.pseudo.min(3), case.chunks[0].is_multiple_of(2));
    }
    Some(plan)
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

/// Plans of requests whose chunks are kept already.
pub fn warm(plans: &[Plan]) -> Vec<Plan> {
    plans.iter().cloned().map(crate::warm).collect()
}

/// Runs every method and exchange on a group of `world` ranks, one after the other and side by
/// side: cold, keeping chunks, and with chunks that were kept. Of how many tokens it compared, the
/// requests and places of those that differ at near ties.
///
/// # Panics
/// If an answer differs otherwise, or more than one token in a hundred.
pub fn side_by_side_equals_alone(
    link: &CoordinatorLink,
    model: &dyn Model,
    world: usize,
) -> (usize, Vec<(u64, usize)>) {
    let (mut compared, mut ties) = (0, Vec::new());
    let alone = run_alone(link, &plans(model, world, false));
    let tokens: usize = alone.iter().map(|outcome| outcome.tokens.len()).sum();
    let mut compare = |plans: &[Plan], together: &[Outcome]| {
        compared += tokens;
        ties.extend(differing(plans, &alone, together));
    };
    for keep_chunks in [false, true] {
        let plans = plans(model, world, keep_chunks);
        let (first, rest) = plans.split_at(5);
        let (second, third) = rest.split_at(1);
        compare(&plans, &run_side_by_side(link, &[first, second, &[], third]));
    }
    let kept = warm(&plans(model, world, true));
    compare(&kept, &run_side_by_side(link, &[&kept]));
    for (plans, slice_rows) in [(plans(model, world, false), 5), (kept, 7)] {
        // Slices of a few rows: several a layer, of different numbers on the ranks.
        let slices = Slices::of(slice_rows);
        let plans: Vec<Plan> = plans.into_iter().map(|plan| Plan { slices, ..plan }).collect();
        compare(&plans, &run_halting(link, &plans));
    }
    assert!(100 * ties.len() <= compared, "world {world}: {} of {compared} tokens: {ties:?}", ties.len());
    (compared, ties)
}

/// Runs plans side by side on one group: every plan of `waves` is prefilled while those of the
/// waves before it are decoded, all running sequences in each step. The outcomes are in the order
/// of the plans, which need numbers of their own.
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

/// Runs plans one after the other; each prefill halts after every layer, and the sequences of the
/// plans before it take a step there. The outcomes are in the order of the plans.
///
/// # Panics
/// If few prefills have halted.
pub fn run_halting(link: &CoordinatorLink, plans: &[Plan]) -> Vec<Outcome> {
    let (mut running, mut done, mut halts) = (Vec::new(), BTreeMap::new(), 0);
    for plan in plans {
        let request = prefilled_halting(link, plan, &mut || {
            halts += 1;
            settle(link, &mut running, &mut done);
            if !running.is_empty() {
                step(link, &mut running);
            }
        });
        running.push(request);
    }
    let least = if plans.iter().any(|plan| plan.slices != Slices::default()) { 8 } else { 2 };
    assert!(halts > least * plans.len(), "{halts} halts of {} prefills", plans.len());
    loop {
        settle(link, &mut running, &mut done);
        if running.is_empty() {
            return done.into_values().collect();
        }
        step(link, &mut running);
    }
}

/// A plan after its prefill.
pub fn prefilled(link: &CoordinatorLink, plan: &Plan) -> InFlight {
    order_prefill(link, plan, None)
}

/// A plan after its prefill, which halts after every layer for `between`.
pub fn prefilled_halting(link: &CoordinatorLink, plan: &Plan, between: &mut dyn FnMut()) -> InFlight {
    order_prefill(link, plan, Some(between))
}

fn order_prefill(link: &CoordinatorLink, plan: &Plan, mut between: Option<&mut dyn FnMut()>) -> InFlight {
    let plan = Arc::new(plan.clone());
    let number = plan.request;
    let mut request = InFlight::new(&plan, Clock::start(), Duration::ZERO);
    link.send(Order::Prefill(plan)).expect("rank 0 takes the plan");
    if between.is_some() {
        link.signals().halt(number);
    }
    loop {
        match event(link) {
            Event::Halted { request } => {
                assert_eq!(request, number, "the request whose prefill halts");
                between.as_mut().expect("no other prefill halts")();
                link.signals().halt(number);
                link.send(Order::Resume).expect("rank 0 takes the order");
            }
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
