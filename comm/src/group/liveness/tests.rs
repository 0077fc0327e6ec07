//! Stalls, waits and tiles, by the clock.

use std::thread::sleep;

use super::*;

const SHORT: Duration = Duration::from_millis(100);

fn probing(timeout: Duration) -> Liveness {
    let liveness = Liveness::default();
    liveness.enter(Phase::Probe, timeout);
    liveness
}

#[test]
fn a_step_longer_than_the_timeout_is_a_stall_and_a_wait_is_not() {
    let liveness = probing(SHORT);
    liveness.begin(3);
    liveness.step(StepKind::Linear, Some(5));
    assert_eq!(liveness.stall(), None);
    sleep(2 * SHORT);
    let stall = liveness.stall().expect("no progress for twice the timeout");
    assert_eq!((stall.limit, stall.activity.layer), (SHORT, Some(5)));
    let told = stall.activity.of(2);
    assert!(told.starts_with("rank 2 computes layer 5 in probe of request 3, "), "{told}");
    // The same time spent in a wait is none.
    liveness.wait_for(Collective::Barrier, 7, &[1], Instant::now());
    sleep(2 * SHORT);
    assert_eq!(liveness.stall(), None);
    assert!(liveness.activity().has_waited(SHORT) && !liveness.activity().has_waited(100 * SHORT));
    let told = liveness.activity().of(2);
    assert!(
        told.starts_with("rank 2 waits for ") && told.ends_with(" for ranks [1] in barrier (call 7, probe)"),
        "{told}"
    );
    // After the wait the step's time begins anew; the time before it is the longest of its kind so
    // far.
    liveness.go_on();
    sleep(2 * SHORT);
    assert_eq!(liveness.stall(), None);
}

#[test]
fn a_rank_that_is_slow_from_the_first_step_on_may_be_slow() {
    let liveness = probing(SHORT);
    liveness.begin(1);
    liveness.step(StepKind::Linear, Some(0));
    sleep(SHORT / 2);
    liveness.step(StepKind::Linear, Some(1));
    sleep(2 * SHORT);
    assert_eq!(liveness.stall(), None, "ten times the longest comparable step is longer than the timeout");
    liveness.turn_to(StepKind::Attention);
    sleep(2 * SHORT);
    assert!(liveness.stall().is_some(), "no step of this kind has been seen");
    // A new request: earlier slow steps are forgotten.
    liveness.begin(2);
    liveness.step(StepKind::Linear, Some(0));
    sleep(2 * SHORT);
    assert!(liveness.stall().is_some());
}

#[test]
fn a_rank_that_does_tiles_is_not_stuck_and_one_that_does_none_is() {
    let liveness = probing(SHORT);
    liveness.begin(1);
    liveness.step(StepKind::Linear, Some(0));
    let elsewhere = liveness.clone();
    let tiles = std::thread::spawn(move || {
        for _ in 0..16 {
            sleep(SHORT / 4);
            elsewhere.tile();
        }
    });
    while !tiles.is_finished() {
        assert_eq!(liveness.stall(), None);
        sleep(SHORT / 4);
    }
    sleep(2 * SHORT);
    let stall = liveness.stall().expect("no tile for twice the timeout");
    assert_eq!(stall.limit, SHORT, "tiles do not make the limit longer");
    // Later steps are still compared with the step as a whole.
    liveness.step(StepKind::Linear, Some(1));
    sleep(2 * SHORT);
    assert_eq!(liveness.stall(), None);
}

#[test]
fn the_start_is_no_stall() {
    let liveness = Liveness::default();
    liveness.enter(Phase::Start, SHORT);
    sleep(2 * SHORT);
    assert_eq!(liveness.stall(), None);
}

#[test]
fn a_device_that_stands_in_a_call_waits_and_one_that_comes_on_makes_progress() {
    let liveness = probing(SHORT);
    sleep(2 * SHORT);
    liveness.reach(4, Some(Collective::AllGather));
    assert_eq!(liveness.stall(), None);
    sleep(2 * SHORT);
    liveness.reach(4, Some(Collective::AllGather));
    assert!(liveness.activity().has_waited(2 * SHORT), "the wait goes on when the same is said again");
    let told = liveness.activity().of(0);
    assert!(told.contains("waits on its device for ") && told.ends_with(" in all-gather (call 3, probe)"), "{told}");
    liveness.reach(3, None);
    assert!(liveness.activity().has_waited(SHORT), "older news does not count");
    liveness.reach(4, None);
    assert_eq!((liveness.stall(), liveness.activity().reached), (None, 4));
    sleep(2 * SHORT);
    assert!(liveness.stall().is_some());
}
