//! Readiness of a service, and its self-test before it.

use std::time::{Duration, Instant};

use crate::kit::server::{SELF_TEST, Server, body};

const SENT: &str = "tributary_collective_bytes_total{rank=\"1\",collective=\"exchange\",direction=\"sent\"}";

#[test]
fn a_service_tests_its_ranks_before_it_is_ready_and_when_it_has_idled() {
    let server = Server::start(&["--world-size", "2", SELF_TEST, "1"]);
    let ready = server.get("/ready");
    assert_eq!((ready.status, ready.body.as_str()), (200, "ready\n"));
    let at_the_start = server.metric(SENT);
    assert!(at_the_start > 0.0, "the ring has gone round");
    let began = Instant::now();
    while server.metric(SENT) == at_the_start {
        assert!(began.elapsed() < Duration::from_secs(30), "it does not test itself again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.get("/ready").status, 200);
    let total = "tributary_requests_total{method=\"full\",outcome=\"answered\"}";
    assert_eq!(server.metric(total), 0.0, "a self-test is not counted as a request");
    assert_eq!(server.chat(&body("vt3-1", 2)).status, 200);
    server.ends_well();
}

#[test]
fn a_service_without_self_tests_sends_nothing_by_itself() {
    let server = Server::start(&["--world-size", "2"]);
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.metric(SENT), 0.0);
    server.ends_well();
}
