//! Clients that leave, and a service that gets a signal to end.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::http;
use crate::kit::server::{Ended, Server, body, streamed};

const RUNNING: &str = "tributary_requests_running";
const WAITING: &str = "tributary_requests_waiting";
const CANCELLED: &str = "tributary_requests_total{method=\"infoflow\",outcome=\"cancelled\"}";

/// A request whose answer takes seconds.
fn long() -> Value {
    body("hop2-0", 3000)
}

/// Sends a request and reads nothing.
fn silent(server: &Server, request: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    let text = request.to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{text}", text.len()).expect("written");
    stream
}

#[test]
fn a_client_that_leaves_is_let_go_of() {
    let server = Server::start(&["--world-size", "2", "--max-running", "1"]);
    let before = server.answer(&body("vt3-1", 12));
    let mut stream = server.stream(&long());
    for _ in 0..3 {
        stream.event().expect("an event");
    }
    assert_eq!(server.metric(RUNNING), 1.0);
    // A client that leaves while its text is still read has handed nothing in: then another one
    // waits.
    let mut tries = 0;
    while server.metric(CANCELLED) == 0.0 {
        tries += 1;
        assert!(tries < 100, "clients that leave in the queue are counted");
        let waits = silent(&server, &body("hop2-1", 4));
        server.becomes(WAITING, 1.0);
        drop(waits);
        server.becomes(WAITING, 0.0);
    }
    assert_eq!((server.metric(CANCELLED), server.metric(RUNNING)), (1.0, 1.0));
    drop(stream);
    server.becomes(RUNNING, 0.0);
    assert_eq!(server.metric(CANCELLED), 2.0);

    let whole = silent(&server, &long());
    server.becomes(RUNNING, 1.0);
    drop(whole);
    server.becomes(RUNNING, 0.0);
    assert_eq!(server.metric(CANCELLED), 3.0);

    assert_eq!(server.answer(&body("vt3-1", 12)), before);
    assert_eq!(streamed(server.stream(&body("vt3-1", 12))).0, before);
    assert_eq!(server.metric(CANCELLED), 3.0);
    server.ends_well();
}

#[test]
fn a_service_that_is_told_to_end_answers_what_it_has_begun() {
    let server = Server::start(&["--world-size", "2"]);
    let expected = server.answer(&body("hop2-0", 1500));
    let mut stream = server.stream(&body("hop2-0", 1500));
    stream.event().expect("an event");
    server.terminate();
    // New requests are refused, as soon as the signal has arrived.
    let began = Instant::now();
    while http::send(&server.address, "GET /ready", None).is_some_and(|response| response.status != 503) {
        assert!(began.elapsed() < Duration::from_secs(1), "it goes on taking requests");
    }
    let late = body("vt2-0", 1).to_string();
    let turned_away = http::send(&server.address, "POST /v1/chat/completions", Some(&late));
    assert!(turned_away.is_none_or(|response| response.status == 503));
    let (text, events) = streamed(stream);
    assert_eq!(text, expected);
    assert_eq!(events[events.len() - 1]["choices"][0]["finish_reason"], "length");
    let Ended { code, errors } = server.end();
    assert_eq!((code, errors.as_str()), (Some(0), ""));
}

/// Text on a connection until its other side closes it.
fn rest_of(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    let mut text = String::new();
    match stream.read_to_string(&mut text) {
        Ok(_) => text,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => text,
        Err(error) => panic!("{error}, after `{text}`"),
    }
}

#[test]
fn a_service_that_drains_refuses_connections_closes_idle_ones_and_answers_503_to_half_a_request() {
    let server = Server::start(&["--world-size", "2"]);
    let mut stream = server.stream(&body("hop2-0", 1500));
    stream.event().expect("an event");
    let begin = || {
        let mut begun = TcpStream::connect(&server.address).expect("it listens");
        write!(begun, "GET /ready HTTP/1.1\r\nhost: localhost\r\n").expect("written");
        begun
    };
    // One connection has been answered and is kept open; one has sent half a request, one nothing.
    let mut kept = begin();
    write!(kept, "\r\n").expect("written");
    let mut first = [0; 12];
    kept.read_exact(&mut first).expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");
    let (mut half, silent) = (begin(), TcpStream::connect(&server.address).expect("it listens"));
    assert_eq!(server.get("/ready").status, 200, "connections before this one have been taken");
    server.terminate();
    let began = Instant::now();
    while TcpStream::connect(&server.address).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(5), "new connections are refused");
    }
    let refused = TcpStream::connect(&server.address).expect_err("no socket listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let ready = rest_of(kept);
    assert!(
        ready.ends_with("ready\n") && !ready.contains("HTTP"),
        "an idle connection is closed without a word: {ready}"
    );
    write!(half, "\r\n").expect("written");
    let late = rest_of(half);
    assert!(late.starts_with("HTTP/1.1 503"), "{late}");
    assert_eq!(rest_of(silent), "", "a connection that has asked nothing is closed without a word");
    drop(stream);
    assert_eq!(server.end().code, Some(0));
}

#[test]
fn a_request_that_never_comes_to_its_end_keeps_no_service_from_ending() {
    let server = Server::start(&[]);
    let mut half = TcpStream::connect(&server.address).expect("it listens");
    write!(half, "POST /v1/chat/completions HTTP/1.1\r\nhost: loc").expect("written");
    assert_eq!(server.get("/ready").status, 200, "it has been looked at");
    let began = Instant::now();
    server.ends_well();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let server = Server::start(&[]);
    let mut stream = server.stream(&long());
    stream.event().expect("an event");
    server.terminate();
    while http::send(&server.address, "GET /ready", None).is_some_and(|response| response.status != 503) {}
    server.terminate();
    assert_eq!(server.end().code, Some(143));
}
