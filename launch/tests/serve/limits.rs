//! Limits of a service: strangers, too many requests, and requests that take too long.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::http::{self, Response, Stream};
use crate::kit::server::{Server, body};
use crate::kit::{demo, tributary};

const RUNNING: &str = "tributary_requests_running";

/// A connection that waits for bytes, but not for ever.
fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(&server.address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    stream
}

/// Seconds until the other side closes; the bytes sent before.
fn closes(mut stream: TcpStream) -> (f64, String) {
    let (began, mut bytes) = (Instant::now(), Vec::new());
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    (began.elapsed().as_secs_f64(), String::from_utf8(bytes).expect("text"))
}

fn ask(server: &Server, path: &str, headers: &str) -> u16 {
    let port = server.address.rsplit(':').next().expect("a port");
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n").expect("written");
    let (_, text) = closes(stream);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status: {text}"))
}

#[test]
fn only_whoever_shows_a_key_may_ask() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, "# two teams\nred-river-1\nblue-river-2\n").expect("written");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let file = file.display().to_string();
    let server = Server::start(&["--api-key-file", &file, "--listen", "0.0.0.0:0"]);
    let address = server.address.replace("0.0.0.0", "127.0.0.1");
    for path in ["/health", "/ready"] {
        assert_eq!(http::get(&address, path).status, 200, "{path}");
    }
    for path in ["/v1/models", "/metrics", "/version"] {
        let response = http::get(&address, path);
        assert_eq!(response.status, 401, "{path}");
        assert_eq!(response.header("www-authenticate"), Some("Bearer"), "{path}");
        assert_eq!(response.json()["error"]["code"], "invalid_api_key", "{path}");
    }
    let unanswered = http::post(&address, "/v1/chat/completions", &body("hop2-0", 2));
    assert_eq!(unanswered.status, 401, "{}", unanswered.body);
    for key in ["red-river-1", "blue-river-2"] {
        let headers = format!("host: inference.example.com\r\nauthorization: Bearer {key}\r\n");
        assert_eq!(ask(&server, "/v1/models", &headers), 200, "a key counts by whatever name the service is called");
    }
    assert_eq!(ask(&server, "/v1/models", "host: x\r\nauthorization: Bearer red-river-2\r\n"), 401);
    assert_eq!(ask(&server, "/metrics", "host: x\r\n"), 401);
    server.ends_well();

    let server = Server::start(&["--api-key-file", &file, "--metrics-public"]);
    assert_eq!(ask(&server, "/metrics", "host: x\r\n"), 200);
    assert_eq!(ask(&server, "/v1/models", "host: x\r\n"), 401);
    server.ends_well();

    let missing = tributary(&["serve", "--model", &demo(), "--api-key-file", "/nowhere/keys"]);
    let errors = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(64), "{errors}");
    assert!(errors.starts_with("tributary: --api-key-file /nowhere/keys: "), "{errors}");
}

#[test]
fn only_allowed_methods_may_be_named() {
    let server = Server::start(&["--method", "relay:ratio=0.3", "--reorder", "--methods-allowed", "full,infoflow"]);
    let named = |method: &str| {
        let mut request = crate::kit::server::body("vt3-1", 1);
        request["tributary"] = json!({"method": method});
        server.chat(&request)
    };
    for method in ["full", "infoflow:ratio=0.5", "relay"] {
        assert_eq!(named(method).status, 200, "{method}");
    }
    let refused = named("trace");
    let message = refused.json()["error"]["message"].clone();
    assert_eq!((refused.status, message), (400, json!("`trace` is not allowed by this service")));
    let status = server.get("/v1/status").json();
    let names: Vec<&str> =
        status["methods"].as_array().expect("a list").iter().filter_map(|method| method["name"].as_str()).collect();
    assert_eq!(names, ["full", "infoflow", "relay"]);
    assert_eq!(status["method"], "relay:ratio=0.3:reorder", "the service's own, with its options");
    server.ends_well();
}

#[test]
fn requests_beyond_a_limit_are_told_both_numbers() {
    let options = ["--max-documents", "7", "--max-prompt-tokens", "60", "--max-body-size", "20KiB"];
    let server = Server::start(&options);
    let message = |response: &Response| response.json()["error"]["message"].as_str().expect("a message").to_owned();
    let request = |documents: usize, words: usize| {
        let documents: Vec<Value> = (0..documents).map(|_| json!(vec!["mary"; words].join(" "))).collect();
        json!({"messages": [{"role": "user", "content": "question : hugo stays in"}], "documents": documents,
            "max_tokens": 1})
    };
    assert_eq!(server.chat(&request(7, 4)).status, 200);
    let many = server.chat(&request(8, 4));
    assert_eq!(
        (many.status, message(&many).as_str()),
        (400, "`documents`: more than 7 documents; this service takes at most 7")
    );
    let long = server.chat(&request(2, 100));
    assert_eq!(long.status, 400);
    assert!(message(&long).ends_with(" tokens of prompt; this service takes at most 60"), "{}", message(&long));
    let large = server.chat(&request(1, 5000));
    assert_eq!((large.status, message(&large).as_str()), (413, "the body is longer than 20480 bytes"));
    // One that does not say how long it is is counted.
    let mut stream = connect(&server);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
    write!(stream, "{head}\r\ntransfer-encoding: chunked\r\n\r\n5000\r\n{}\r\n1\r\nx\r\n0\r\n\r\n", " ".repeat(0x5000))
        .expect("written");
    let mut start = [0; 12];
    stream.read_exact(&mut start).expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 413");
    server.ends_well();
}

#[test]
fn every_failure_that_is_told_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, "red-river-1\n").expect("written");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let file = file.display().to_string();
    let options = ["--api-key-file", &file, "--metrics-public", "--max-body-size", "20KiB", "--header-timeout", "1"];
    let server = Server::start(&options);
    let refused = || server.metric("tributary_request_errors_total{error_type=\"invalid_request_error\"}");
    let known = "host: x\r\nauthorization: Bearer red-river-1\r\n";
    let json = format!("{known}content-type: application/json\r\n");
    let long = format!("{json}content-length: 30000\r\n\r\n{}", " ".repeat(30_000));
    let cases = [
        (401, "GET /v1/models", "host: x\r\n\r\n".to_owned()),
        (404, "GET /nowhere", format!("{known}\r\n")),
        (405, "GET /v1/chat/completions", format!("{known}\r\n")),
        (415, "POST /v1/chat/completions", format!("{known}content-length: 2\r\n\r\n{{}}")),
        (400, "POST /v1/chat/completions", format!("{json}content-length: 2\r\n\r\n{{}}")),
        (413, "POST /v1/chunks", long),
        (408, "POST /v1/completions", format!("{json}content-length: 100\r\n\r\n{{")),
    ];
    for (count, (status, line, rest)) in cases.iter().enumerate() {
        assert_eq!(refused(), count as f64, "before {line}");
        let mut stream = connect(&server);
        write!(stream, "{line} HTTP/1.1\r\n{rest}").expect("written");
        let mut start = [0; 12];
        stream.read_exact(&mut start).expect("an answer");
        assert_eq!(String::from_utf8_lossy(&start), format!("HTTP/1.1 {status}"), "{line}");
    }
    assert_eq!(refused(), cases.len() as f64);
    // A head that is too long is refused without a request.
    let mut stream = connect(&server);
    write!(stream, "GET /health HTTP/1.1\r\nhost: {}", "x".repeat(100 << 10)).expect("written");
    let (_, text) = closes(stream);
    assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    server.ends_well();
}

#[test]
fn a_client_that_does_not_read_is_cut_or_told_nothing() {
    // It stands in every part of a stream, of which the system holds some MB: with a short name
    // that may be all of them.
    let name = "demo".repeat(1000);
    let server = Server::start(&["--world-size", "2", "--served-model-name", &name]);
    let unread = |max_tokens: usize| {
        let mut request = body("hop2-0", max_tokens);
        (request["stream"], request["logprobs"], request["top_logprobs"]) = (true.into(), true.into(), 20.into());
        request["model"] = name.as_str().into();
        http::open(&server.address, "/v1/chat/completions", &request)
    };
    let newest = || server.get("/v1/status").json()["recent"][0].clone();
    // More than the system and the service hold for it.
    let kept = unread(3500);
    server.becomes("tributary_requests_cancelled_total{stage=\"slow\"}", 1.0);
    let cut = newest();
    assert_eq!(cut["outcome"], "cancelled", "{cut}");
    drop(kept);
    let cancelled = "tributary_requests_total{method=\"infoflow\",outcome=\"cancelled\"}";
    server.becomes(cancelled, 1.0);
    // Not quite as much: the whole answer is there when the client leaves, and it has read nothing.
    let most = cut["generated_tokens"].as_u64().expect("a number") as usize;
    let kept = unread(most - 400);
    server.becomes(RUNNING, 1.0);
    server.becomes(RUNNING, 0.0);
    assert_eq!(newest()["id"], cut["id"], "it has not ended for its client");
    drop(kept);
    server.becomes(cancelled, 2.0);
    let left = newest();
    assert_eq!((&left["outcome"], left["generated_tokens"].as_u64()), (&json!("cancelled"), Some(most as u64 - 400)));
    assert!(left["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")), "{left}");
    server.ends_well();
}

#[test]
fn connections_that_do_nothing_are_closed() {
    let server = Server::start(&["--header-timeout", "1", "--idle-timeout", "3"]);
    let (idle, mut half) = (connect(&server), connect(&server));
    write!(half, "GET /health HTTP/1.1\r\nhost: loc").expect("written");
    let (seconds, text) = closes(half);
    assert!((0.5..2.5).contains(&seconds), "the head was awaited for {seconds} s");
    assert_eq!(text, "");
    // A head that dribbles in gets no more time.
    let mut slow = connect(&server);
    let began = Instant::now();
    while write!(slow, "G").is_ok() && began.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    closes(idle);
    // A body has its own time, which is that of the head here: it is short.
    let mut body = connect(&server);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
    write!(body, "{head}\r\ncontent-length: 100\r\n\r\n{{").expect("written");
    let (_, text) = closes(body);
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    // A client that goes on asking may stay.
    let mut kept = connect(&server);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        write!(kept, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("written");
        let mut answer = [0; 512];
        let length = kept.read(&mut answer).expect("an answer");
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
        std::thread::sleep(Duration::from_millis(900));
    }
    server.ends_well();
}

#[test]
fn a_connection_too_many_takes_the_place_of_the_one_that_has_idled_longest() {
    let server = Server::start(&["--max-connections", "4", "--world-size", "2"]);
    let mut busy = server.stream(&body("hop2-0", 3000));
    busy.event().expect("an event");
    let first = connect(&server);
    std::thread::sleep(Duration::from_millis(50));
    let others = [connect(&server), connect(&server)];
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.get("/health").status, 200, "there is a place for one more");
    let (seconds, _) = closes(first);
    assert!(seconds < 5.0, "the first of the idle connections was closed");
    assert_eq!(server.metric(RUNNING), 1.0, "and not the one that is being answered");
    busy.event().expect("it goes on");
    drop((busy, others));
    server.becomes(RUNNING, 0.0);
    server.ends_well();
}

/// Enough parallel streams that each takes seconds.
fn crowd(server: &Server) -> Vec<Stream> {
    (0..10).map(|_| server.stream(&body("hop2-0", 3000))).collect()
}

/// The message of the error that ends a stream, after text.
fn ends_with_error(stream: Stream) -> String {
    let mut events = stream.events();
    let last: Value = serde_json::from_str(&events.pop().expect("events")).expect("JSON");
    assert!(events.len() > 1, "what had come before was sent");
    last["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {last}")).to_owned()
}

#[test]
fn a_request_that_takes_too_long_is_ended_and_let_go_of() {
    let server = Server::start(&["--request-timeout", "1", "--world-size", "2"]);
    let streams = crowd(&server);
    let whole = server.chat(&body("hop2-0", 3000));
    assert_eq!(whole.status, 504, "{}", whole.body);
    assert_eq!(whole.json()["error"]["message"], "the answer took longer than 1 s");
    for stream in streams {
        assert_eq!(ends_with_error(stream), "the answer took longer than 1 s");
    }
    server.becomes(RUNNING, 0.0);
    // No client has left: each of them got an error.
    let ended =
        |how: &str| server.metric(&format!("tributary_requests_total{{method=\"infoflow\",outcome=\"{how}\"}}"));
    assert_eq!((ended("failed"), ended("cancelled")), (11.0, 0.0));
    assert_eq!(server.metric("tributary_request_errors_total{error_type=\"server_error\"}"), 11.0);
    assert_eq!(server.chat(&body("hop2-0", 4)).status, 200);
    server.ends_well();
}

#[test]
fn what_is_under_way_at_the_end_of_the_time_to_drain_is_cut() {
    let server = Server::start(&["--drain-timeout", "1", "--world-size", "2"]);
    let mut streams = crowd(&server);
    streams[9].event().expect("an event");
    let began = Instant::now();
    server.terminate();
    for stream in streams {
        let message = ends_with_error(stream);
        assert_eq!(message, "the service ends, and its time to answer what it has begun is over");
    }
    let ended = server.end();
    assert_eq!((ended.code, ended.errors.as_str()), (Some(0), ""));
    assert!((1.0..9.0).contains(&began.elapsed().as_secs_f64()), "{:?}", began.elapsed());
}
