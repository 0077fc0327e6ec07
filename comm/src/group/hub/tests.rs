//! The hub's waits, as one rank of several sees them.

use std::cell::Cell;

use super::*;
use crate::Collective;
use crate::group::call::{Call, Payload};

fn barrier() -> Contribution {
    Contribution { call: Call::Barrier, payload: Payload::default() }
}

#[test]
fn slow_is_not_dead_and_nobody_left_to_end_a_wait_is() {
    let hub = Hub::new(2);
    let patience = Patience { phase: Phase::Probe, deadline: Duration::from_millis(50) };
    hub.put_mine(0, 0, barrier()).expect("the first call");
    let judged = Cell::new(0);
    let judge = |missing: &[usize], _: Patience| {
        assert_eq!(missing, &[1]);
        judged.set(judged.get() + 1);
        match judged.get() {
            5 => Verdict::Over(vec!["rank 1 waits".to_owned()]),
            _ => Verdict::GoesOn,
        }
    };
    let began = Instant::now();
    let Err(Error::Timeout { states, after, .. }) = hub.take(0, 0, patience, &judge).map(drop) else {
        panic!("the wait is over");
    };
    assert_eq!((states, after, judged.get()), (vec!["rank 1 waits".to_owned()], patience.deadline, 5));
    assert!(began.elapsed() >= patience.deadline + 4 * (patience.deadline / JUDGED_AGAIN), "{:?}", began.elapsed());
}

#[test]
fn ranks_that_all_wait_are_dead_and_one_that_computes_keeps_the_group_alive() {
    let hub = Hub::new(2);
    let patience = Patience { phase: Phase::Probe, deadline: Duration::from_millis(100) };
    let enter = |rank: usize, timeout| hub.liveness(rank).enter(Phase::Probe, timeout);
    enter(0, patience.deadline);
    enter(1, Duration::from_secs(60));
    let long_ago = Instant::now().checked_sub(Duration::from_secs(1)).expect("the machine is up");
    hub.liveness(0).wait_for(Collective::Barrier, 0, &[1], long_ago);
    assert!(matches!(hub.judge(&[1], patience), Verdict::GoesOn), "rank 1 computes");
    hub.liveness(1).wait_for(Collective::AllGather, 0, &[0], long_ago);
    let Verdict::Over(states) = hub.judge(&[1], patience) else { panic!("both wait") };
    assert!(states[0].starts_with("rank 1 waits for 1."), "{states:?}");
    hub.liveness(1).go_on();
    enter(1, Duration::ZERO);
    std::thread::sleep(Duration::from_millis(1));
    let Verdict::Stalled(error) = hub.judge(&[1], patience) else { panic!("rank 1 makes no progress") };
    assert!(matches!(error, Error::Stalled { rank: 1, .. }), "{error}");
    assert_eq!(error.exit_code(), 75);
    hub.leave(1);
    assert!(matches!(hub.judge(&[1], patience), Verdict::Over(_)), "a rank that has left is not waited for");
}

#[test]
fn a_part_that_comes_while_the_wait_is_judged_saves_the_call() {
    let hub = Hub::new(2);
    let patience = Patience { phase: Phase::Probe, deadline: Duration::from_millis(20) };
    hub.put_mine(0, 0, barrier()).expect("the first call");
    let judge = |_: &[usize], _: Patience| {
        hub.bring(1, 0, 0, barrier());
        Verdict::Over(Vec::new())
    };
    assert!(hub.take(0, 0, patience, &judge).is_ok());
    assert!(hub.alive(0).is_ok());
    assert_eq!(hub.open_calls(), 0);
}

#[test]
fn a_part_of_a_call_that_has_ended_is_a_mismatch() {
    let hub = Hub::new(2);
    let patience = Patience { phase: Phase::Probe, deadline: Duration::from_secs(5) };
    hub.put_mine(0, 0, barrier()).expect("the first call");
    hub.bring(1, 0, 0, barrier());
    hub.take(0, 0, patience, &|_, _| Verdict::GoesOn).expect("both have come");
    // Calls ahead of this rank's are accepted; earlier ones are not.
    hub.bring(1, 0, 1, barrier());
    assert!(hub.alive(0).is_ok());
    hub.bring(1, 0, 0, barrier());
    assert!(matches!(hub.alive(0), Err(Error::Mismatch { sequence: 0, rank: 0, other: 1, .. })));
}

#[test]
fn a_rank_that_has_left_is_missed_only_where_it_is_needed() {
    let hub = Hub::new(3);
    let patience = Patience { phase: Phase::Idle, deadline: Duration::from_secs(5) };
    let bytes = || Payload { tensors: Vec::new(), bytes: Some(std::sync::Arc::new(vec![7])) };
    let call = Call::BroadcastBytes { root: 0 };
    hub.bring(0, 2, 0, Contribution { call: call.clone(), payload: bytes() });
    hub.leave(0);
    hub.leave(1);
    hub.put_mine(2, 0, Contribution { call, payload: Payload::default() }).expect("all that is needed is here");
    assert_eq!(hub.take(2, 0, patience, &|_, _| Verdict::GoesOn).expect("the root's bytes").bytes.len(), 1);
    let error = hub.put_mine(2, 1, barrier()).expect_err("no other rank is left");
    assert_eq!((&error, error.exit_code()), (&Error::Left { rank: 0 }, 69));
}
