//! Stores that accept connections and never answer: no caller waits longer than its limit, and
//! requests beyond the bound fail at once.

use std::time::{Duration, Instant};

use tributary_store::{Bytes, Operation, Reason, RemoteLimits};

use crate::gets;
use crate::kit::proxy::{Harm, Proxy};
use crate::kit::{LONG, MOST_BYTES, becomes, key, listener, open, short};

#[test]
fn a_full_queue_is_told_at_once() {
    // Connections are accepted and never answered.
    let (_silent, address) = listener();
    let limits = RemoteLimits { waiting_bytes: 1000, waiting_requests: 2, timeout: LONG, ..short() };
    let remote = open(address, "s3://chunks/a", limits);
    let began = Instant::now();
    let of = |bytes: usize| Bytes::from(vec![0; bytes]);
    assert_eq!(remote.put(&key(1), of(1001)), Err(Reason::TooLarge));
    remote.put(&key(1), of(600)).expect("queued");
    assert_eq!(remote.put(&key(2), of(600)), Err(Reason::Full));
    remote.put(&key(3), of(400)).expect("queued");
    assert!(!remote.flush(Duration::from_millis(50)) && remote.waiting_bytes() == 1000);
    let fetches = [1, 2].map(|number| remote.get(&key(number), MOST_BYTES));
    assert_eq!(gets(&remote, 3), Err(Reason::Full));
    let counters = remote.counters();
    let of = |operation, reason| counters.of(operation).errors(reason);
    assert_eq!((of(Operation::Put, Reason::Full), of(Operation::Put, Reason::TooLarge)), (1, 1));
    assert_eq!((of(Operation::Get, Reason::Full), of(Operation::Get, Reason::Down)), (1, 0));
    // Dropping a fetch frees its place.
    let [first, second] = fetches;
    drop(first);
    let third =
        || (remote.get(&key(3), MOST_BYTES).wait(Duration::from_millis(10)) == Err(Reason::Timeout)).then_some(());
    becomes("a place is free", || third().is_some());
    // Callers that wait when the store is closed get an answer.
    drop(remote);
    assert_eq!(second.wait(LONG), Err(Reason::Down));
    assert!(began.elapsed() < LONG, "no caller waited for the store");
}

#[test]
fn a_store_that_never_answers_is_not_waited_for_by_everybody() {
    // Connections are accepted and never answered; callers have less patience than the store's own
    // limit.
    let (_silent, address) = listener();
    let limits = RemoteLimits { timeout: LONG, failures: 3, first_rest: Duration::from_secs(1), ..short() };
    let remote = open(address, "s3://chunks/a", limits);
    let waits = || remote.get(&key(1), MOST_BYTES).wait(Duration::from_millis(200));
    for _ in 0..2 {
        assert_eq!(waits(), Err(Reason::Timeout));
    }
    // A fetch that is dropped before its time says nothing of the store.
    (0..10).for_each(|_| drop(remote.get(&key(1), MOST_BYTES)));
    assert!(!remote.is_down());
    // Each wait in vain is a failure, and each trial after a rest too.
    for _ in 0..2 {
        becomes("it is down", || waits() == Err(Reason::Down));
        becomes("its rest is over", || waits() == Err(Reason::Timeout));
    }
    becomes("it is down", || waits() == Err(Reason::Down));
    assert_eq!(remote.counters().downs, 1, "it was down all the time");
}

#[test]
fn no_more_requests_are_under_way_than_may_be() {
    let proxy = Proxy::start(listener().1);
    proxy.harms(&[Harm::Delay(LONG); 20]);
    let limits = RemoteLimits { at_once: 4, timeout: LONG, ..short() };
    let remote = open(proxy.address, "s3://chunks/a", limits);
    let mut seen = 0;
    let mut are_under_way = |wanted: usize| {
        becomes("requests are under way", || {
            seen += proxy.requests();
            seen >= wanted
        });
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(seen + proxy.requests(), wanted);
    };
    // Chunks that are sent leave half of the turns to those that are asked for.
    (0..5).for_each(|number| remote.put(&key(number), Bytes::from_static(b"text")).expect("queued"));
    are_under_way(2);
    let mut fetches: Vec<_> = (0..5).map(|number| remote.get(&key(number), MOST_BYTES)).collect();
    are_under_way(4);
    // The turn of a dropped fetch goes to another.
    fetches.remove(0);
    are_under_way(5);
}
