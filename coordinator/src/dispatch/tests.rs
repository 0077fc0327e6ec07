//! One request at a time against ranks that send scripted events.

use std::sync::mpsc::{Receiver, channel};

use tributary_comm::{WorkerLink, link};
use tributary_planner::{Cached, Machine, MemoryOf, MethodInputs, PlanInput, RequestSettings, plan};
use tributary_protocol::{DrawnToken, Outcome, Refusal, StepReport};

use super::*;
use crate::demo::DEMO;

fn a_plan() -> Arc<Plan> {
    let settings = RequestSettings::default();
    let input = PlanInput {
        request: 5,
        prefix: &[1],
        lead: &[],
        chunks: &[vec![3; 4]],
        cached: Cached::default(),
        query: &[4],
        eos: &[2],
        method_inputs: MethodInputs::default(),
    };
    let machine = Machine {
        flops_per_s: 1e12,
        link_bytes_per_s: 1e9,
        memory: MemoryOf::Host,
        available_bytes: None,
        ranks_here: usize::MAX,
        weight_copies: 1,
        of_rank: None,
    };
    plan(&input, &settings, &DEMO, &machine, None).unwrap().plan
}

/// Runs a plan with a worker that sends these events, each after a pause, which begins after a
/// first token was received.
fn with_events(events: &[(u64, Event)]) -> (Result<Answer>, Vec<u32>) {
    let (coordinator, worker) = link(4);
    std::thread::scope(|scope| {
        let (hears, heard) = channel();
        scope.spawn(move || serve(&worker, events, &heard));
        let mut first_tokens = Vec::new();
        let clock = Clock::start();
        let mut on_event = |event: &Event| {
            if let Event::FirstToken { request: 5, drawn } = event {
                first_tokens.push(drawn.token);
                // The worker may have ended.
                let _ = hears.send(());
            }
        };
        let answer = run(&coordinator, &a_plan(), &clock, &mut on_event);
        drop(coordinator);
        (answer, first_tokens)
    })
}

fn serve(worker: &WorkerLink, events: &[(u64, Event)], heard: &Receiver<()>) {
    let mut before: Option<&Event> = None;
    let received = worker.next(Duration::from_secs(5)).unwrap();
    assert_eq!(received, Some(Order::Prefill(a_plan())));
    for (pause_ms, event) in events {
        if matches!(event, Event::Stepped { .. }) {
            assert_eq!(worker.next(Duration::from_secs(5)).unwrap(), Some(Order::Decode(vec![5])));
        }
        if matches!(event, Event::Released { .. }) {
            assert_eq!(worker.next(Duration::from_secs(5)).unwrap(), Some(Order::Release(vec![5])));
        }
        if *pause_ms > 0 && matches!(before, Some(Event::FirstToken { .. })) {
            heard.recv_timeout(Duration::from_secs(5)).expect("it is heard");
        }
        std::thread::sleep(Duration::from_millis(*pause_ms));
        worker.send(event.clone()).unwrap();
        before = Some(event);
    }
    // Stays until the coordinator is gone, as a worker does.
    while worker.next(Duration::from_millis(10)).is_ok() {}
}

fn drawn(token: u32) -> DrawnToken {
    DrawnToken { token, margin: 0.5, logprobs: None }
}

fn first(request: u64, token: u32) -> Event {
    Event::FirstToken { request, drawn: drawn(token) }
}

/// The end of a prefill whose outcome has these tokens, on two ranks, of which `drew` claim to have
/// drawn the first token.
fn prefilled(tokens: &[u32], drew: usize) -> Event {
    let outcome = Outcome { tokens: tokens.to_vec(), margins: vec![0.5; tokens.len()], ..Outcome::default() };
    let reports =
        (0..2).map(|rank| RankReport { rank, drew_first_token: rank < drew, ..RankReport::default() }).collect();
    Event::Prefilled { request: 5, outcome: Box::new(outcome), reports }
}

fn step(token: std::result::Result<u32, Refusal>) -> Event {
    let rank = |rank| {
        let mut report = StepReport { rank, seconds: 0.25, waited_s: 0.125, ..StepReport::default() };
        report.traffic.count(tributary_comm::Collective::AllToAll, 3, 4);
        report
    };
    Event::Stepped { tokens: vec![(5, token.map(drawn))], reports: vec![rank(0), rank(1)] }
}

fn released() -> Event {
    Event::Released { running: vec![0, 0] }
}

#[test]
fn the_first_token_stops_the_clock() {
    let events = [(20, first(5, 9)), (200, prefilled(&[9], 1)), (0, step(Ok(2))), (0, released())];
    let (answer, first_tokens) = with_events(&events);
    let answer = answer.unwrap();
    assert_eq!(first_tokens, [9]);
    assert_eq!(answer.outcome.tokens, [9, 2]);
    let ms = Duration::from_millis;
    assert!(answer.tokenize < answer.ttft);
    assert!(answer.ttft >= ms(20), "{answer:?}");
    assert!(answer.total >= answer.ttft + ms(100), "{answer:?}");
}

#[test]
fn decoding_is_one_phase_of_the_answer() {
    let events = [(0, first(5, 9)), (0, prefilled(&[9], 1)), (0, step(Ok(7))), (0, step(Ok(2))), (0, released())];
    let answer = with_events(&events).0.unwrap();
    assert_eq!((answer.outcome.tokens, answer.outcome.margins), (vec![9, 7, 2], vec![0.5; 3]));
    for report in answer.reports {
        let last = report.spans.last().expect("decoding");
        assert_eq!((last.phase, last.seconds, last.waited_s), (tributary_protocol::Phase::Decode, 0.5, 0.25));
        assert_eq!(report.decode_traffic.tensor_bytes_received(), 8);
    }
}

#[test]
fn one_token_needs_no_step_and_no_release() {
    // The end token comes first.
    let answer = with_events(&[(0, first(5, 2)), (0, prefilled(&[2], 1))]).0.unwrap();
    assert_eq!(answer.outcome.tokens, [2]);
    assert!(answer.reports.iter().all(|report| report.spans.is_empty()), "nothing was decoded");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let cases = [
        vec![(0, first(6, 8))],
        vec![(0, prefilled(&[9], 1))],
        vec![(0, first(5, 9)), (0, first(5, 9))],
        vec![(0, first(5, 9)), (0, prefilled(&[8], 1))],
        vec![(0, first(5, 9)), (0, prefilled(&[], 1))],
        vec![(0, first(5, 9)), (0, prefilled(&[9], 0))],
        vec![(0, first(5, 9)), (0, prefilled(&[9], 2))],
        vec![(0, first(5, 9)), (0, prefilled(&[9], 1)), (0, first(5, 9))],
    ];
    for events in cases {
        let error = with_events(&events).0.unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{events:?}: {error}");
    }
}

#[test]
fn a_refusal_is_the_requests_alone() {
    let refusal = || Refusal { exit_code: 65, cause: "the logits hold NaN".into() };
    let refused = Event::Refused { request: 5, refusal: refusal(), traffic: Vec::new() };
    let in_decoding = vec![(0, first(5, 9)), (0, prefilled(&[9], 1)), (0, step(Err(refusal()))), (0, released())];
    for events in [vec![(0, refused)], in_decoding] {
        let error = with_events(&events).0.unwrap_err();
        assert_eq!((error.to_string().as_str(), error.exit_code()), ("the logits hold NaN", 65));
    }
}

#[test]
fn a_failure_carries_its_cause_and_exit_code() {
    let failed = Event::Failed { request: 5, rank: 3, exit_code: 71, cause: "no memory".into() };
    for events in [vec![(0, failed.clone())], vec![(0, first(5, 9)), (0, failed)]] {
        let error = with_events(&events).0.unwrap_err();
        assert_eq!(error.to_string(), "rank 3 failed: no memory");
        assert_eq!(error.exit_code(), 71);
    }
}

#[test]
fn slow_is_not_dead() {
    let slow = LOOK.as_millis() as u64 + 200;
    let (answer, first_tokens) = with_events(&[(slow, first(5, 2)), (0, prefilled(&[2], 1))]);
    assert!(answer.unwrap().ttft > LOOK, "the coordinator has looked up in between");
    assert_eq!(first_tokens, [2]);
}

#[test]
fn workers_that_are_gone_are_an_error() {
    let (coordinator, worker) = link(1);
    drop(worker);
    let error = run(&coordinator, &a_plan(), &Clock::start(), &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), 69);
}
