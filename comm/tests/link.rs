//! The control channel between the coordinator and rank 0.

use std::time::Duration;

use tributary_comm::{Error, link};
use tributary_protocol::{DrawnToken, Event, Order};

#[test]
fn the_link_carries_both_ways_and_notices_the_end() {
    let (coordinator, worker) = link(2);
    let wait = Duration::from_millis(20);
    assert_eq!(worker.next(wait), Ok(None));
    assert_eq!(coordinator.next(wait), Ok(None));
    let first = Event::FirstToken { request: 1, drawn: DrawnToken { token: 2, margin: 0.5, logprobs: None } };
    worker.send(first.clone()).unwrap();
    assert_eq!(coordinator.next(wait), Ok(Some(first.clone())));
    worker.send(first.clone()).unwrap();
    coordinator.send(Order::Release(vec![3])).unwrap();
    assert_eq!(worker.next(wait), Ok(Some(Order::Release(vec![3]))));
    drop(worker);
    assert_eq!(coordinator.next(wait), Ok(Some(first)), "what was sent before the end arrives");
    assert_eq!(coordinator.next(wait), Err(Error::Disconnected("worker")));
    let (coordinator, worker) = link(1);
    drop(coordinator);
    assert_eq!(worker.next(wait), Err(Error::Disconnected("coordinator")));
}
