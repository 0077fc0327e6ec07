//! The order of waiting requests under each policy, and the bound of what the shortest first may
//! keep waiting.

use tributary_protocol::SplitMix64;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const BOUND: Duration = Duration::from_secs(20);
const SHORTEST: Policy = Policy::Shortest { max_age: BOUND };

fn scheduler(policy: Policy) -> Scheduler {
    Scheduler::new(1, Limits { policy, max_waiting: 10_000, max_prefill_burst: 100, ..Limits::default() })
}

/// A client's request of this work at this second.
fn arrival(request: u64, asker: u64, work: u64, at_s: u64) -> Arrival {
    Arrival { request, asker, tokens: work, work, at: at_s as u32 * SECOND, is_held: false }
}

fn submit(scheduler: &mut Scheduler, arrivals: &[Arrival]) {
    arrivals.iter().for_each(|arrival| assert!(scheduler.submit(*arrival), "{arrival:?}"));
}

/// The next prefill if everything fits.
fn taken(scheduler: &mut Scheduler, at: Duration) -> Option<u64> {
    match scheduler.next(at, &Room::unknown(1), |_| Some(Reservation::nothing(1))) {
        Next::Prefill(request) => Some(request),
        Next::Nothing => None,
        other => panic!("{other:?}"),
    }
}

/// All waiting requests in the order in which they are taken at this moment.
fn order(scheduler: &mut Scheduler, at: Duration) -> Vec<u64> {
    std::iter::from_fn(|| taken(scheduler, at)).collect()
}

#[test]
fn the_policy_decides_the_order_of_waiting_requests() {
    let arrivals = [(1, 300), (2, 100), (3, 200), (4, 100)].map(|(request, work)| arrival(request, 0, work, request));
    for (policy, expected) in [(Policy::Fifo, [1, 2, 3, 4]), (SHORTEST, [2, 4, 3, 1])] {
        let mut scheduler = scheduler(policy);
        submit(&mut scheduler, &arrivals);
        assert_eq!(order(&mut scheduler, 10 * SECOND), expected, "{policy:?}");
    }
    // Clients take turns where their requests are equal, and nowhere else.
    let mut scheduler = scheduler(SHORTEST);
    submit(&mut scheduler, &[(1, 7), (2, 7), (3, 7), (4, 8)].map(|(request, asker)| arrival(request, asker, 9, 0)));
    submit(&mut scheduler, &[arrival(5, 7, 8, 0), arrival(6, 9, 10, 0)]);
    assert_eq!(order(&mut scheduler, SECOND), [5, 1, 4, 2, 3, 6]);
}

#[test]
fn work_is_what_decides_and_tokens_are_what_clients_take_turns_by() {
    let cached = Arrival { tokens: 900, work: 10, ..arrival(2, 1, 0, 0) };
    for (policy, expected) in [(Policy::Fifo, [1, 3, 2, 4]), (SHORTEST, [2, 1, 3, 4])] {
        let mut scheduler = scheduler(policy);
        submit(&mut scheduler, &[arrival(1, 1, 100, 0), cached, arrival(3, 2, 101, 0), arrival(4, 2, 200, 0)]);
        assert_eq!(order(&mut scheduler, SECOND), expected, "{policy:?}");
    }
}

#[test]
fn a_request_older_than_the_bound_goes_before_all_younger_ones() {
    let arrivals = [arrival(1, 0, 50, 1), arrival(2, 0, 900, 0), arrival(3, 0, 700, 2), arrival(4, 0, 10, 9)];
    for (at, expected) in [
        (BOUND, [4, 1, 3, 2]),
        (BOUND + Duration::from_nanos(1), [2, 4, 1, 3]),
        (BOUND + 2 * SECOND, [2, 1, 4, 3]),
        (BOUND + 3 * SECOND, [2, 1, 3, 4]),
    ] {
        let mut scheduler = scheduler(SHORTEST);
        submit(&mut scheduler, &arrivals);
        assert_eq!(order(&mut scheduler, at), expected, "at {at:?}");
    }
}

#[test]
fn a_request_that_comes_later_is_shorter_and_waits_for_no_prefill_but_the_one_in_progress() {
    let mut scheduler = scheduler(SHORTEST);
    submit(&mut scheduler, &[arrival(1, 0, 500, 0), arrival(2, 0, 600, 0)]);
    assert_eq!(taken(&mut scheduler, SECOND), Some(1));
    submit(&mut scheduler, &[arrival(3, 0, 5, 1)]);
    assert_eq!(order(&mut scheduler, 2 * SECOND), [3, 2]);
}

#[test]
fn an_old_request_without_room_is_passed_only_so_often() {
    let mut scheduler = scheduler(SHORTEST);
    scheduler.runs(1000, Reservation::nothing(1));
    submit(&mut scheduler, &[arrival(1, 0, 900, 0)]);
    let mut passed = 0;
    for request in 2..100 {
        let now = BOUND + request as u32 * SECOND;
        submit(&mut scheduler, &[Arrival { at: now, ..arrival(request, 0, 5, 0) }]);
        let fits = |request| (request != 1).then(|| Reservation::nothing(1));
        passed += usize::from(matches!(scheduler.next(now, &Room::unknown(1), fits), Next::Prefill(_)));
    }
    assert_eq!(passed, MAX_PASSED, "then it has its turn as soon as it fits");
    scheduler.over(1000);
    assert_eq!(scheduler.next(BOUND, &Room::unknown(1), |_| None), Next::Release(vec![1000]));
    scheduler.released();
    assert_eq!(taken(&mut scheduler, 2 * BOUND), Some(1));
}

/// Requests that came, each with the second in which its prefill began; a prefill of a work of n
/// takes n seconds.
fn served(policy: Policy, arrivals: &[Arrival]) -> Vec<(Arrival, Duration)> {
    let (mut scheduler, mut served, mut now) = (scheduler(policy), Vec::new(), Duration::ZERO);
    let mut coming = arrivals.iter().copied().peekable();
    while served.len() < arrivals.len() {
        while let Some(arrival) = coming.next_if(|arrival| arrival.at <= now) {
            submit(&mut scheduler, &[arrival]);
        }
        match taken(&mut scheduler, now) {
            Some(request) => {
                let arrival = arrivals[request as usize];
                served.push((arrival, now));
                now += arrival.work as u32 * SECOND;
            }
            None => now = coming.peek().expect("a request that is not served").at,
        }
    }
    served
}

/// Requests of one to nine seconds of work, `every_s` seconds apart in the mean.
fn random(seed: u64, count: u64, every_s: u64) -> Vec<Arrival> {
    let (mut random, mut at_s) = (SplitMix64::new(seed), 0);
    let mut below = |bound: u64| random.below(bound as usize) as u64;
    let each = |request| {
        at_s += below(2 * every_s + 1);
        arrival(request, below(3), 1 + below(9), at_s)
    };
    (0..count).map(each).collect()
}

#[test]
fn the_shortest_is_taken_except_for_those_older_than_the_bound_and_none_waits_much_beyond_it() {
    let (mut overtook, mut longest) = (0, Duration::ZERO);
    for seed in 0..300 {
        // Below and beyond what can be served.
        let arrivals = random(seed, 60, 3 + seed % 5);
        let served = served(SHORTEST, &arrivals);
        for (place, &(chosen, now)) in served.iter().enumerate() {
            let waited = |arrival: &Arrival| now.saturating_sub(arrival.at);
            let others = served[place + 1..].iter().map(|(other, _)| other).filter(|other| other.at <= now);
            for other in others {
                let is_old = waited(other) > BOUND;
                assert!(!(is_old && other.at < chosen.at), "seed {seed}: {chosen:?} before {other:?} at {now:?}");
                let is_chosen_old = waited(&chosen) > BOUND;
                assert!(is_chosen_old || is_old || chosen.work <= other.work, "seed {seed}: {chosen:?} {other:?}");
                overtook += usize::from(other.at < chosen.at);
            }
            // Beyond the bound it waits for one prefill in progress, and for older requests.
            let due = chosen.at + BOUND;
            let older = served[..place].iter().filter(|(other, began)| other.at <= chosen.at && *began > due);
            let older: Duration = older.map(|(other, _)| other.work as u32 * SECOND).sum();
            let beyond = now.saturating_sub(due).saturating_sub(older);
            assert!(beyond <= 9 * SECOND, "seed {seed}: {chosen:?} waits {beyond:?} beyond the bound");
            longest = longest.max(beyond);
        }
    }
    assert!(overtook > 1000 && longest > 5 * SECOND, "{overtook} overtook, {longest:?} beyond the bound");
}

#[test]
fn a_long_request_waits_for_the_bound_and_one_prefill_while_short_ones_keep_arriving() {
    for seed in 0..100 {
        let mut random = SplitMix64::new(seed);
        // More of them than can be served, each shorter than the first one.
        let mut arrivals = vec![arrival(0, 0, 10, 0)];
        arrivals.extend((1..100).map(|request| arrival(request, 1, 1 + random.below(9) as u64, request)));
        arrivals.insert(0, arrival(0, 1, 9, 0));
        (0..).zip(&mut arrivals).for_each(|(number, arrival)| arrival.request = number);
        let waits = |policy| {
            let served = served(policy, &arrivals);
            let (long, began) = served.iter().find(|(arrival, _)| arrival.work == 10).expect("it is served");
            began.saturating_sub(long.at)
        };
        let bounded = waits(SHORTEST);
        assert!(bounded > BOUND && bounded <= BOUND + 9 * SECOND, "seed {seed}: {bounded:?}");
        let unbounded = waits(Policy::Shortest { max_age: Duration::MAX });
        assert!(unbounded > 300 * SECOND, "seed {seed}: without a bound {unbounded:?}");
    }
}
