//! The loop of ranks that are threads, order by order.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use tributary_comm::{CoordinatorLink, link, local};
use tributary_kernels::Kernels;
use tributary_model::{Adapters, Model};
use tributary_protocol::{Drift, Exchange, LookAhead, Order, Outcome, Plan, RankReport, Slices, Traffic};

use super::*;
use crate::kit;

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `work` against a group of `world` ranks; returns the result of each rank.
fn with_group<'a>(models: impl Into<Models<'a>>, world: usize, work: impl FnOnce(&CoordinatorLink)) -> Vec<Result<()>> {
    let models: Models = models.into();
    let (coordinator, worker) = link(4);
    let mut worker = Some(worker);
    std::thread::scope(|scope| {
        let start = |seat: local::Seat| {
            let (link, models) = (worker.take(), models.clone());
            scope.spawn(move || {
                let mut cache = ChunkCache::none();
                serve(models, Kernels::Auto, &mut seat.take(), link.as_ref(), PATIENCE, &mut cache)
            })
        };
        let ranks: Vec<_> = local::seats(world).into_iter().map(start).collect();
        work(&coordinator);
        drop(coordinator);
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

fn event(link: &CoordinatorLink) -> Event {
    link.next(PATIENCE).expect("rank 0 is there").expect("an event in time")
}

/// The end event of a prefill, without its first token.
fn prefill(link: &CoordinatorLink, plan: &Plan) -> Event {
    link.send(Order::Prefill(Arc::new(plan.clone()))).expect("sent");
    match event(link) {
        Event::FirstToken { .. } => event(link),
        other => other,
    }
}

fn outcome(event: Event) -> (Outcome, Vec<RankReport>) {
    match event {
        Event::Prefilled { outcome, reports, .. } => (*outcome, reports),
        other => panic!("{other:?}"),
    }
}

fn plan(exchange: Exchange) -> Plan {
    let method = kit::method("infoflow:layers=1..2");
    Plan { method, exchange, budget: 4, request: 1, max_tokens: 4, ..kit::plan(2, &[9, 8, 5], 4, 2) }
}

/// Bytes of tensors to other ranks.
fn tensor_bytes_sent(traffic: &Traffic) -> u64 {
    traffic.entries.iter().filter(|(kind, _)| !kind.is_control()).map(|(_, entry)| entry.sent_bytes).sum()
}

/// The end event of a prefill that halts at every point, and the number of its halts; `at` is
/// called with the number of each. `gate` keeps the model from the first layer until a halt is
/// wanted.
fn halting(link: &CoordinatorLink, plan: &Plan, gate: &RwLock<()>, mut at: impl FnMut(usize)) -> (Event, usize) {
    let closed = gate.write().expect("no panic");
    link.send(Order::Prefill(Arc::new(plan.clone()))).expect("sent");
    link.signals().halt(plan.request);
    drop(closed);
    let mut halts = 0;
    loop {
        match event(link) {
            Event::FirstToken { .. } => {}
            Event::Halted { request } => {
                assert_eq!(request, plan.request);
                halts += 1;
                at(halts);
                link.signals().halt(plan.request);
                link.send(Order::Resume).expect("sent");
            }
            end => return (end, halts),
        }
    }
}

#[test]
fn a_prefill_that_halts_reports_its_own_work_and_is_cancelled_at_any_point() {
    let gate = RwLock::new(());
    let alter = |_: &[u32], rows| {
        drop(gate.read().expect("no panic"));
        Ok(rows)
    };
    let model = kit::Altered { model: kit::model(&kit::config()), alter };
    for (exchange, world) in [(Exchange::Replicate, 2), (Exchange::PassQ, 2), (Exchange::Replicate, 1)] {
        let whole = Plan { chunks: kit::plan(2, &[9, 8, 5], 4, world).chunks, owner: world - 1, ..plan(exchange) };
        let sliced = Plan { slices: Slices::of(3), ..whole.clone() };
        let ended = with_group(&model as &dyn Model, world, |link| {
            let release = |request| {
                link.send(Order::Release(vec![request])).expect("sent");
                assert_eq!(event(link), Event::Released { running: vec![0; world] });
            };
            let (alone, reports) = outcome(prefill(link, &whole));
            release(1);
            let steps = |_| {
                // A step of no sequence is a step too: its messages are not the prefill's.
                link.send(Order::Decode(Vec::new())).expect("sent");
                assert!(matches!(event(link), Event::Stepped { .. }));
            };
            let (end, halts) = halting(link, &sliced, &gate, steps);
            let (found, halted) = outcome(end);
            release(1);
            assert_eq!((&found.tokens, &found.selected), (&alone.tokens, &alone.selected), "{exchange:?}, {world}");
            // Points before the first layer may come before a halt is wanted.
            let (points, fewest) = (halted[0].points, halts as u64);
            assert!((fewest..2 * fewest).contains(&points), "{points} points, {halts} halts");
            assert!(halted[0].points > 2 * reports[0].points, "slices have points of their own");
            for (before, report) in reports.iter().zip(&halted) {
                assert_eq!(tensor_bytes_sent(&before.traffic), tensor_bytes_sent(&report.traffic), "{exchange:?}");
                let gathers =
                    |traffic: &Traffic| traffic.entries.get(&tributary_comm::Collective::GatherBytes).cloned();
                assert_eq!(gathers(&before.traffic), gathers(&report.traffic), "steps are not counted");
                let phases = |report: &RankReport| report.spans.iter().map(|span| span.phase).collect::<Vec<_>>();
                assert_eq!(phases(report), [vec![Phase::Interleaved], phases(before)].concat());
                assert!(report.spans[0].seconds > 0.0);
            }
            for cancelled_at in (1..=halts).step_by(3) {
                let (end, _) = halting(link, &sliced, &gate, |halt| {
                    if halt == cancelled_at {
                        link.signals().cancel(1);
                    }
                });
                match end {
                    Event::Cancelled { reports, .. } => {
                        let passed = cancelled_at as u64 + 1..=points;
                        assert!(reports.iter().all(|report| passed.contains(&report.points)), "{cancelled_at}");
                    }
                    Event::Prefilled { .. } if 2 * cancelled_at > halts => release(1),
                    other => panic!("cancelled at {cancelled_at} of {halts}: {other:?}"),
                }
            }
            let (again, _) = outcome(prefill(link, &whole));
            assert_eq!(again.tokens, alone.tokens);
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

#[test]
fn a_request_that_cannot_be_computed_is_refused_and_the_group_lives_on() {
    let model = kit::spoilt(kit::model(&kit::config()), 60);
    for (exchange, world) in [(Exchange::Replicate, 2), (Exchange::PassQ, 2), (Exchange::Replicate, 1)] {
        let good = Plan { chunks: kit::plan(2, &[9, 8, 5], 4, world).chunks, owner: world - 1, ..plan(exchange) };
        let mut spoilt = Plan { request: 2, ..good.clone() };
        spoilt.chunks[1].ids[3] = 60;
        let drift = Drift { layers: 2, ..Drift::default() };
        let drifting = Plan { request: 6, method: kit::drifting(drift), ..spoilt.clone() };
        let unseen = Plan { request: 3, budget: 0, method: kit::method("full"), query: vec![7, 60], ..good.clone() };
        let foreign = Plan { request: 4, query: vec![61], ..good.clone() };
        let auxiliary = vec![kit::auxiliary(vec![1, 2, 3], vec![0..0, 2..3])];
        let unnamed = Plan { request: 5, auxiliary, ..good.clone() };
        let ended = with_group(&model as &dyn Model, world, |link| {
            let before = outcome(prefill(link, &good)).0;
            let causes = [
                (&spoilt, 65, "attention scores hold NaN"),
                (&drifting, 65, "distances from the cache hold NaN"),
                (&unseen, 65, "logits hold NaN"),
                (&foreign, 64, "token id 61 is outside the vocabulary of 61"),
                (&unnamed, 64, "there is no model `small` beside the main one"),
            ];
            for (plan, exit_code, cause) in causes {
                match prefill(link, plan) {
                    Event::Refused { request, refusal, traffic } => {
                        let sent: Vec<u64> = traffic.iter().map(tensor_bytes_sent).collect();
                        let computed = exit_code == 65 && plan.method.name() != "full" && world > 1;
                        assert_eq!(sent.len(), world);
                        assert!(sent.iter().all(|&bytes| (bytes > 0) == computed), "{cause}: {sent:?}");
                        assert_eq!((request, refusal.exit_code), (plan.request, exit_code), "{}", refusal.cause);
                        assert!(refusal.cause.contains(cause), "{}", refusal.cause);
                    }
                    other => panic!("{cause}: {other:?}"),
                }
                let after = outcome(prefill(link, &Plan { request: 10 + plan.request, ..good.clone() })).0;
                assert_eq!(after, before, "the same answer after {cause}");
            }
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

#[test]
fn a_step_of_a_sequence_that_does_not_run_is_a_bug() {
    let model = kit::model(&kit::config());
    for list in [vec![9], vec![1, 1], vec![1, 9]] {
        let ended = with_group(&*model, 2, |link| {
            outcome(prefill(link, &plan(Exchange::Replicate)));
            link.send(Order::Decode(list.clone())).expect("sent");
            assert!(matches!(event(link), Event::Failed { exit_code: 70, .. }), "{list:?}");
        });
        assert!(ended.iter().all(Result::is_err), "{list:?}: {ended:?}");
    }
}

/// The answer to a plan, token by token.
fn answer(models: Models<'_>, world: usize, plan: &Plan) -> (Outcome, Vec<tributary_protocol::DrawnToken>) {
    let mut found = None;
    let ended = with_group(models, world, |link| {
        let first = outcome(prefill(link, plan)).0;
        let step = |_| {
            link.send(Order::Decode(vec![plan.request])).expect("sent");
            let Event::Stepped { mut tokens, .. } = event(link) else { panic!("a step was due") };
            tokens.remove(0).1.expect("finite logits")
        };
        found = Some((first, (1..plan.max_tokens).map(step).collect()));
    });
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    found.expect("an answer")
}

#[test]
fn generation_goes_on_as_if_there_had_been_no_look_ahead() {
    let model = kit::model(&kit::config());
    let adapters = Adapters::new([(3, model.embed(&[40, 41, 42, 43, 44, 45]).expect("ids").hidden)]);
    let models = || Models::from(&*model).with_adapters(adapters.clone());
    let returns = tributary_protocol::Returns { logits: true, scores: true, logprobs: Some(2), prompt_logprobs: None };
    for (exchange, world) in [(Exchange::Replicate, 1), (Exchange::Replicate, 2), (Exchange::PassQ, 3)] {
        for method in [kit::method("full"), kit::method("ring"), plan(exchange).method] {
            let budget = if method.selection().is_some() { 4 } else { 0 };
            let chunks = kit::plan(2, &[9, 8, 5], 4, world).chunks;
            let without = Plan { method, chunks, budget, owner: 0, max_tokens: 5, returns, ..plan(exchange) };
            // More rows than tokens are generated: their positions go beyond those of the answer.
            let with = Plan { look_ahead: Some(LookAhead { adapter: 3, rows: 6 }), ..without.clone() };
            let found = answer(models(), world, &with);
            assert_eq!(found.1.len(), 4);
            assert_eq!(found, answer(models(), world, &without), "{:?}, {exchange:?}, {world} ranks", without.method);
        }
    }
}

#[test]
fn chunks_ahead_of_use_are_there_when_they_are_wanted() {
    let model = kit::model(&kit::config());
    let cold = plan(Exchange::PassQ);
    let chunks_only = Plan { query: Vec::new(), exchange: Exchange::Replicate, ..cold.clone() };
    let mut warm = cold.clone();
    warm.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
    let (coordinator, worker) = link(4);
    let mut worker = Some(worker);
    let space = tributary_protocol::KeySpace::new([1; 32], "f32");
    std::thread::scope(|scope| {
        for seat in local::seats(2) {
            let (model, link, space) = (&*model, worker.take(), space.clone());
            scope.spawn(move || {
                let mut cache = ChunkCache::new(space, 1 << 20);
                serve(model, Kernels::Auto, &mut seat.take(), link.as_ref(), PATIENCE, &mut cache)
                    .expect("it ends well");
            });
        }
        coordinator.send(Order::Chunks(Arc::new(chunks_only))).expect("sent");
        let Event::Kept { request: 1, reports } = event(&coordinator) else { panic!("chunks were due") };
        let stored: usize = reports.iter().map(|report| report.chunk_cache.stored.len()).sum();
        assert_eq!(stored, 3 + 2, "three chunks, and the prefix on each rank");
        assert_eq!(reports.iter().map(|report| report.prefilled_rows).sum::<usize>(), 22 + 2 * 2);
        let (outcome_warm, reports) = outcome(prefill(&coordinator, &warm));
        assert_eq!(reports.iter().map(|report| report.chunk_cache.hits).sum::<usize>(), 3);
        let (outcome_cold, _) = outcome(prefill(&coordinator, &Plan { request: 2, ..cold }));
        assert_eq!(outcome_warm, outcome_cold, "bit for bit");
        drop(coordinator);
    });
}
