//! The next step, order by order.

use tributary_planner::STEP_TOKENS;

use super::*;

fn scheduler(limits: Limits) -> Scheduler {
    Scheduler::new(2, limits)
}

/// A client's request of this number of tokens, none of them cached.
fn arrival(request: u64, asker: u64, tokens: u64) -> Arrival {
    Arrival { request, asker, tokens, work: tokens, at: Duration::ZERO, is_held: false }
}

/// A sequence that takes these bytes on two ranks, and nothing for its answer.
fn takes(bytes: [u64; 2]) -> Reservation {
    Reservation::new(bytes.to_vec(), 0, 0, 0)
}

/// The next order with unlimited memory; `fits` decides which prefills fit.
fn next(scheduler: &mut Scheduler, mut fits: impl FnMut(u64) -> bool) -> Next {
    scheduler.next(Duration::ZERO, &Room::unknown(2), |request| fits(request).then(|| takes([10, 1])))
}

/// The next order if everything fits, with its consequence: a prefill's sequence runs.
fn carry_out(scheduler: &mut Scheduler) -> Next {
    let next = next(scheduler, |_| true);
    match &next {
        Next::Prefill(request) => scheduler.runs(*request, takes([10, 1])),
        Next::Release(_) => scheduler.released(),
        Next::Decode(_) | Next::Nothing => {}
    }
    next
}

#[test]
fn prefills_come_first_but_not_more_than_the_burst() {
    for (burst, expected) in [(1, "PDPDPDPD"), (2, "PPDPPDDD"), (9, "PPPPDDDD")] {
        let mut scheduler = scheduler(Limits { max_prefill_burst: burst, ..Limits::default() });
        (1..=4).for_each(|request| assert!(scheduler.submit(arrival(request, 0, 1))));
        let order = |_| match carry_out(&mut scheduler) {
            Next::Prefill(_) => 'P',
            Next::Decode(_) => 'D',
            other => panic!("{other:?}"),
        };
        assert_eq!((0..8).map(order).collect::<String>(), expected, "burst {burst}");
    }
}

#[test]
fn nobody_decodes_nobody_waits() {
    let mut scheduler = scheduler(Limits::default());
    assert_eq!(carry_out(&mut scheduler), Next::Nothing);
    // Prefills that leave no sequence, of one token each, follow each other.
    (1..=3).for_each(|request| assert!(scheduler.submit(arrival(request, 0, 1))));
    for request in 1..=3 {
        assert_eq!(next(&mut scheduler, |_| true), Next::Prefill(request));
        scheduler.over(request);
    }
    assert_eq!(carry_out(&mut scheduler), Next::Nothing);
}

#[test]
fn what_does_not_fit_waits_until_memory_is_free() {
    let mut scheduler = scheduler(Limits::default());
    (1..=3).for_each(|request| assert!(scheduler.submit(arrival(request, 0, 1))));
    assert_eq!(carry_out(&mut scheduler), Next::Prefill(1));
    assert_eq!(carry_out(&mut scheduler), Next::Decode(vec![1]));
    let none = |_| false;
    assert_eq!(next(&mut scheduler, none), Next::Decode(vec![1]));
    scheduler.over(1);
    assert_eq!(scheduler.taken(), [10, 1], "it counts until it is released");
    assert_eq!(carry_out(&mut scheduler), Next::Release(vec![1]));
    assert_eq!(scheduler.taken(), [0, 0]);
    assert_eq!(next(&mut scheduler, none), Next::Nothing);
    assert_eq!(carry_out(&mut scheduler), Next::Prefill(2));
}

#[test]
fn whether_the_front_fits_is_asked_once_between_two_releases() {
    let mut scheduler = scheduler(Limits::default());
    (1..=3).for_each(|request| assert!(scheduler.submit(arrival(request, 0, 1))));
    assert_eq!(carry_out(&mut scheduler), Next::Prefill(1));
    let mut asked = Vec::new();
    let mut refused = |scheduler: &mut Scheduler| {
        next(scheduler, |request| {
            asked.push(request);
            false
        })
    };
    (0..5).for_each(|_| assert_eq!(refused(&mut scheduler), Next::Decode(vec![1])));
    // Another one becomes the first in line.
    scheduler.over(2);
    (0..5).for_each(|_| assert_eq!(refused(&mut scheduler), Next::Decode(vec![1])));
    scheduler.over(1);
    assert_eq!(refused(&mut scheduler), Next::Release(vec![1]));
    scheduler.released();
    assert_eq!(refused(&mut scheduler), Next::Nothing);
    assert_eq!(asked, [2, 3, 3]);
}

#[test]
fn limits_hold() {
    let mut scheduler = scheduler(Limits { max_running: 2, max_waiting: 3, max_prefill_burst: 9, ..Limits::default() });
    let taken: Vec<bool> = (1..=4).map(|request| scheduler.submit(arrival(request, 0, 1))).collect();
    assert_eq!(taken, [true, true, true, false]);
    assert_eq!(carry_out(&mut scheduler), Next::Prefill(1));
    assert_eq!(carry_out(&mut scheduler), Next::Prefill(2));
    assert_eq!(carry_out(&mut scheduler), Next::Decode(vec![1, 2]));
    scheduler.over(1);
    assert_eq!(carry_out(&mut scheduler), Next::Release(vec![1]));
    assert_eq!(carry_out(&mut scheduler), Next::Prefill(3));
    assert_eq!((scheduler.waiting(), scheduler.running()), (0, 2));
}

#[test]
fn clients_take_turns_by_what_they_ask_for() {
    let mut scheduler = scheduler(Limits::default());
    // One client hands in long prompts, then another a short one, then a third two of the same
    // length.
    (1..=6).for_each(|request| assert!(scheduler.submit(arrival(request, 1, 1000))));
    assert_eq!(next(&mut scheduler, |_| true), Next::Prefill(1));
    assert!(scheduler.submit(arrival(7, 2, 10)));
    (8..=9).for_each(|request| assert!(scheduler.submit(arrival(request, 3, 1000))));
    let order: Vec<Next> = (0..8).map(|_| next(&mut scheduler, |_| true)).collect();
    assert_eq!(order, [7, 8, 2, 9, 3, 4, 5, 6].map(Next::Prefill));
    // A client without waiting requests has no debt.
    assert!(scheduler.submit(arrival(10, 1, 10)) && scheduler.submit(arrival(11, 4, 10)));
    assert_eq!(
        [next(&mut scheduler, |_| true), next(&mut scheduler, |_| true)],
        [Next::Prefill(11), Next::Prefill(10)]
    );
}

#[test]
fn small_requests_pass_a_large_one_but_only_so_often() {
    let mut scheduler = scheduler(Limits { max_running: 100, max_prefill_burst: 100, ..Limits::default() });
    scheduler.runs(1000, takes([5, 5]));
    (1..=30).for_each(|request| assert!(scheduler.submit(arrival(request, 0, 1))));
    let mut taken = Vec::new();
    while let Next::Prefill(request) = next(&mut scheduler, |request| request != 1) {
        taken.push(request);
    }
    assert_eq!(taken, (2..2 + MAX_PASSED as u64).collect::<Vec<_>>(), "then it has its turn as soon as it fits");
    assert_eq!(next(&mut scheduler, |_| true), Next::Decode(vec![1000]));
    scheduler.over(1000);
    assert!(matches!(next(&mut scheduler, |_| true), Next::Release(_)));
    scheduler.released();
    assert_eq!(next(&mut scheduler, |_| true), Next::Prefill(1));
}

#[test]
fn a_request_that_waits_can_go() {
    let mut scheduler = scheduler(Limits::default());
    (1..=2).for_each(|request| assert!(scheduler.submit(arrival(request, 0, 1))));
    scheduler.over(1);
    assert_eq!(carry_out(&mut scheduler), Next::Prefill(2));
}

#[test]
fn the_owner_is_the_rank_with_least_taken() {
    let mut scheduler = scheduler(Limits::default());
    assert_eq!(scheduler.owner(), 0);
    scheduler.runs(1, takes([5, 1]));
    assert_eq!(scheduler.owner(), 1);
    scheduler.runs(2, takes([1, 5]));
    assert_eq!(scheduler.owner(), 0, "level");
}

/// Carries out `steps` orders in a room; returns the sequences that each decodes.
fn decode(scheduler: &mut Scheduler, room: &Room, steps: usize) -> Vec<Vec<u64>> {
    let of = |scheduler: &mut Scheduler| match scheduler.next(Duration::ZERO, room, |_| None) {
        Next::Decode(requests) => requests,
        other => panic!("{other:?}"),
    };
    (0..steps).map(|_| of(scheduler)).collect()
}

/// A sequence without a prompt whose answer may take `steps` steps of memory on rank 0, a byte a
/// token.
fn answer(steps: usize) -> Reservation {
    Reservation::new(vec![0, 0], 0, 1, steps * STEP_TOKENS)
}

fn room(steps: usize) -> Room {
    Room { bytes: Some((steps * STEP_TOKENS) as u64), ranks_here: 2, cached_bytes: vec![0, 0] }
}

#[test]
fn many_long_answers_that_end_early_leave_room_for_others() {
    let mut scheduler = scheduler(Limits { max_prefill_burst: 100, ..Limits::default() });
    (1..=30).for_each(|request| assert!(scheduler.submit(arrival(request, 0, 1))));
    // Each may reach ten steps: twenty have one beside nine more of one of them.
    let room = room(29);
    let mut taken = Vec::new();
    while let Next::Prefill(request) = scheduler.next(Duration::ZERO, &room, |_| Some(answer(10))) {
        taken.push(request);
        scheduler.runs(request, answer(10));
    }
    assert_eq!(taken, (1..=20).collect::<Vec<_>>());
    scheduler.over(7);
    assert_eq!(scheduler.next(Duration::ZERO, &room, |_| None), Next::Release(vec![7]));
    scheduler.released();
    assert_eq!(scheduler.next(Duration::ZERO, &room, |_| Some(answer(10))), Next::Prefill(21));
}

#[test]
fn a_sequence_without_room_for_its_next_step_pauses_until_another_has_ended() {
    let mut scheduler = scheduler(Limits::default());
    (1..=3).for_each(|request| scheduler.runs(request, answer(2)));
    // All have a step, and there is another one.
    let room = room(4);
    assert!(decode(&mut scheduler, &room, STEP_TOKENS).iter().all(|step| *step == [1, 2, 3]));
    assert_eq!(scheduler.paused(), 0);
    assert!(decode(&mut scheduler, &room, STEP_TOKENS - 1).iter().all(|step| *step == [1]), "the oldest first");
    assert_eq!((scheduler.paused(), scheduler.taken()), (2, vec![4 * STEP_TOKENS as u64, 0]));
    scheduler.over(1);
    assert_eq!(scheduler.next(Duration::ZERO, &room, |_| None), Next::Release(vec![1]));
    scheduler.released();
    assert!(decode(&mut scheduler, &room, STEP_TOKENS).iter().all(|step| *step == [2, 3]));
    assert_eq!(scheduler.paused(), 0);
}

#[test]
fn newcomers_do_not_take_what_comes_free_for_one_that_pauses() {
    let mut scheduler = scheduler(Limits { max_prefill_burst: 100, ..Limits::default() });
    let room = room(4);
    scheduler.runs(1, answer(3));
    (2..=4).for_each(|request| scheduler.runs(request, answer(1)));
    (5..=20).for_each(|request| assert!(scheduler.submit(arrival(request, 0, 1))));
    assert!(decode(&mut scheduler, &room, STEP_TOKENS).iter().all(|step| *step == [1, 2, 3, 4]));
    assert_eq!((decode(&mut scheduler, &room, 1), scheduler.paused()), (vec![vec![2, 3, 4]], 1));
    scheduler.over(2);
    assert_eq!(scheduler.next(Duration::ZERO, &room, |_| Some(answer(1))), Next::Release(vec![2]));
    scheduler.released();
    assert_eq!(
        scheduler.next(Duration::ZERO, &room, |_| Some(answer(1))),
        Next::Decode(vec![1, 3, 4]),
        "the oldest goes on first"
    );
    // A paused one that is released does not pause any more.
    let mut left = decode(&mut scheduler, &room, STEP_TOKENS).pop().expect("steps");
    assert_eq!((left.len(), scheduler.paused()), (2, 1));
    left.push(1);
    left.iter().for_each(|&request| scheduler.over(request));
    assert_eq!(scheduler.paused(), 0);
}

#[test]
fn one_goes_on_where_cached_chunks_have_taken_the_room_of_all() {
    let mut scheduler = scheduler(Limits::default());
    (1..=2).for_each(|request| scheduler.runs(request, answer(2)));
    assert!(decode(&mut scheduler, &room(4), STEP_TOKENS).iter().all(|step| *step == [1, 2]));
    let full = Room { cached_bytes: vec![STEP_TOKENS as u64 * 3, 0], ..room(4) };
    assert!(decode(&mut scheduler, &full, STEP_TOKENS).iter().all(|step| *step == [1]));
    assert_eq!(scheduler.paused(), 1);
}

/// Runs a request to the end of its answer; its sequence is kept.
fn keeps(scheduler: &mut Scheduler, request: u64) {
    assert!(scheduler.submit(arrival(request, 0, 1)));
    assert_eq!(carry_out(scheduler), Next::Prefill(request));
    scheduler.keep(request);
}

#[test]
fn kept_sequences_stay_until_memory_is_needed_the_one_used_longest_ago_first() {
    let mut scheduler = scheduler(Limits::default());
    (1..=3).for_each(|request| keeps(&mut scheduler, request));
    assert_eq!((scheduler.kept(), scheduler.running(), scheduler.taken()), (3, 0, vec![30, 3]));
    assert_eq!(carry_out(&mut scheduler), Next::Nothing, "there is nothing to release");
    scheduler.uses(1);
    assert!(scheduler.submit(arrival(4, 0, 1)));
    // A prefill that does not fit, until two have made way.
    for oldest in [2, 3] {
        assert_eq!(next(&mut scheduler, |_| false), Next::Release(vec![oldest]));
        scheduler.released();
    }
    assert_eq!(carry_out(&mut scheduler), Next::Prefill(4));
    assert_eq!((scheduler.kept(), scheduler.taken()), (1, vec![20, 2]));
}

#[test]
fn kept_sequences_make_way_for_the_steps_of_running_ones() {
    let step = STEP_TOKENS as u64;
    let room = Room { bytes: Some(2 * step + 15), ranks_here: 1, cached_bytes: vec![0, 0] };
    for beside_prefill in [false, true] {
        let mut scheduler = scheduler(Limits::default());
        keeps(&mut scheduler, 1);
        keeps(&mut scheduler, 2);
        assert!(scheduler.submit(arrival(3, 0, 1)));
        assert_eq!(next(&mut scheduler, |_| true), Next::Prefill(3));
        scheduler.runs(3, Reservation::new(vec![0, 0], 0, 1, 2 * STEP_TOKENS));
        let step = |scheduler: &mut Scheduler| match beside_prefill {
            true => scheduler.beside_prefill(&room),
            false => scheduler.next(Duration::ZERO, &room, |_| panic!("no request waits")),
        };
        (0..STEP_TOKENS).for_each(|_| assert_eq!(step(&mut scheduler), Next::Decode(vec![3])));
        // Its second step has room beside one of them.
        assert_eq!(step(&mut scheduler), Next::Release(vec![1]));
        scheduler.released();
        (0..STEP_TOKENS).for_each(|_| assert_eq!(step(&mut scheduler), Next::Decode(vec![3])));
        assert_eq!((scheduler.kept(), scheduler.paused()), (1, 0));
    }
}

#[test]
fn kept_sequences_have_a_bound_and_are_dropped_by_name() {
    let mut scheduler = scheduler(Limits { kept_bytes: 25, ..Limits::default() });
    (1..=2).for_each(|request| keeps(&mut scheduler, request));
    assert_eq!(carry_out(&mut scheduler), Next::Nothing);
    keeps(&mut scheduler, 3);
    assert_eq!(carry_out(&mut scheduler), Next::Release(vec![1]), "30 bytes are more than 25");
    scheduler.drop_kept(&[3, 9]);
    assert_eq!(carry_out(&mut scheduler), Next::Release(vec![3]));
    assert_eq!((scheduler.kept(), scheduler.taken()), (1, vec![10, 1]));
    assert!(!scheduler.keep(7), "what does not run is not kept");
    // What is larger than all may be drives no other one out.
    assert!(scheduler.submit(arrival(8, 0, 1)));
    assert_eq!(next(&mut scheduler, |_| true), Next::Prefill(8));
    scheduler.runs(8, takes([26, 0]));
    assert!(!scheduler.keep(8));
    assert_eq!(carry_out(&mut scheduler), Next::Release(vec![8]));
    assert_eq!(scheduler.kept(), 1);
}

#[test]
fn kept_sequences_stay_where_their_memory_would_not_be_enough() {
    let room = Room { bytes: Some(40), ranks_here: 1, cached_bytes: vec![0, 0] };
    let mut scheduler = scheduler(Limits { max_prefill_burst: 9, ..Limits::default() });
    keeps(&mut scheduler, 1);
    assert!(scheduler.submit(arrival(2, 0, 1)) && scheduler.submit(arrival(3, 0, 1)));
    assert_eq!(next(&mut scheduler, |_| true), Next::Prefill(2));
    scheduler.runs(2, takes([25, 0]));
    // Beside the running one 20 bytes have no room in any case; 15 have it in place of the kept
    // one.
    let asked = |scheduler: &mut Scheduler, bytes| scheduler.next(Duration::ZERO, &room, |_| Some(takes([bytes, 0])));
    assert_eq!(asked(&mut scheduler, 20), Next::Decode(vec![2]));
    scheduler.released();
    assert_eq!(asked(&mut scheduler, 15), Next::Release(vec![1]));
}

/// A sequence that is held for another program.
fn holds(scheduler: &mut Scheduler, request: u64) {
    assert!(scheduler.submit(Arrival { is_held: true, ..arrival(request, 0, 1) }));
    assert_eq!(carry_out(scheduler), Next::Prefill(request));
    scheduler.hold(request);
}

#[test]
fn held_sequences_take_memory_and_no_steps_until_they_are_over() {
    let room = Room { bytes: Some(25), ranks_here: 1, cached_bytes: vec![0, 0] };
    let mut scheduler = scheduler(Limits::default());
    holds(&mut scheduler, 1);
    assert_eq!((scheduler.held(), scheduler.running(), scheduler.taken()), (1, 0, vec![10, 1]));
    assert_eq!(carry_out(&mut scheduler), Next::Nothing, "it draws nothing");
    // What does not fit beside it waits until it is over; nothing makes it give way.
    assert!(scheduler.submit(arrival(2, 0, 1)));
    let asked = |scheduler: &mut Scheduler| scheduler.next(Duration::ZERO, &room, |_| Some(takes([20, 0])));
    assert_eq!(asked(&mut scheduler), Next::Nothing);
    scheduler.over(1);
    assert_eq!(asked(&mut scheduler), Next::Release(vec![1]));
    scheduler.released();
    assert_eq!((asked(&mut scheduler), scheduler.held()), (Next::Prefill(2), 0));
}

#[test]
fn held_sequences_have_a_bound_that_keeps_no_other_request_waiting() {
    let mut scheduler = scheduler(Limits { held_bytes: 15, ..Limits::default() });
    holds(&mut scheduler, 1);
    // The second would make 20 bytes of 15; more requests than may pass a large one pass it.
    assert!(scheduler.submit(Arrival { is_held: true, ..arrival(2, 0, 1) }));
    for request in 3..3 + 2 * MAX_PASSED as u64 {
        assert!(scheduler.submit(arrival(request, 0, 1)));
        assert_eq!(next(&mut scheduler, |_| true), Next::Prefill(request));
        scheduler.over(request);
    }
    // A smaller one that is to be held does not pass: it could keep the second waiting for ever.
    assert!(scheduler.submit(Arrival { is_held: true, ..arrival(99, 0, 1) }));
    let small = |request| Some(takes(if request == 99 { [1, 0] } else { [10, 1] }));
    assert_eq!(scheduler.next(Duration::ZERO, &Room::unknown(2), small), Next::Nothing);
    assert_eq!(next(&mut scheduler, |_| panic!("it is known until something is released")), Next::Nothing);
    scheduler.over(1);
    assert_eq!(carry_out(&mut scheduler), Next::Release(vec![1]));
    assert_eq!(next(&mut scheduler, |_| true), Next::Prefill(2));
}

#[test]
fn nothing_counts_on_the_memory_of_held_sequences() {
    let step = STEP_TOKENS as u64;
    let room = Room { bytes: Some(2 * step + 5), ranks_here: 1, cached_bytes: vec![0, 0] };
    let long = Reservation::new(vec![0, 0], 0, 1, 2 * STEP_TOKENS);
    let asked = |scheduler: &mut Scheduler| scheduler.next(Duration::ZERO, &room, |_| Some(long.clone()));
    // An answer that would need the memory of the held one to end is not begun.
    let mut beside = scheduler(Limits::default());
    holds(&mut beside, 1);
    assert!(beside.submit(arrival(2, 0, 1)));
    assert_eq!(asked(&mut beside), Next::Nothing);
    // One that has begun waits for the step that has no room beside it, and takes none beyond it.
    let mut scheduler = scheduler(Limits::default());
    assert!(scheduler.submit(arrival(2, 0, 1)));
    assert_eq!(asked(&mut scheduler), Next::Prefill(2));
    scheduler.runs(2, long.clone());
    (0..STEP_TOKENS).for_each(|_| assert_eq!(asked(&mut scheduler), Next::Decode(vec![2])));
    scheduler.runs(1, takes([10, 1]));
    scheduler.hold(1);
    assert_eq!((asked(&mut scheduler), scheduler.paused()), (Next::Nothing, 1));
    scheduler.over(1);
    assert_eq!(asked(&mut scheduler), Next::Release(vec![1]));
    scheduler.released();
    assert_eq!(asked(&mut scheduler), Next::Decode(vec![2]));
}
