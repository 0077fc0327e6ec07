//! The control channel between the coordinator and rank 0.

use std::time::Duration;

use tributary_comm::{Error, link};
use tributary_protocol::Event;

#[test]
fn the_link_carries_both_ways_and_notices_the_end() {
    let (coordinator, worker) = link(2);
    let wait = Duration::from_millis(20);
    assert_eq!(worker.next(wait), Ok(None));
    assert_eq!(coordinator.next(wait), Ok(None));
    let first = Event::FirstToken { request: 1, token: 2 };
    worker.send(&first).unwrap();
    assert_eq!(coordinator.next(wait), Ok(Some(first.clone())));
    worker.send(&first).unwrap();
    drop(worker);
    assert_eq!(coordinator.next(wait), Ok(Some(first)), "what was sent before the end arrives");
    assert_eq!(coordinator.next(wait), Err(Error::Disconnected("worker")));
    let (coordinator, worker) = link(1);
    drop(coordinator);
    assert_eq!(worker.next(wait), Err(Error::Disconnected("coordinator")));
}
