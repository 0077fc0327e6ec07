//! Clients that leave, in every phase of a request: it is dropped within one order, and others are
//! answered as before. Built with the feature `failpoints`.

mod kit;

use std::time::{Duration, Instant};

use kit::http;
use kit::server::{Server, body, picture_url};
use serde_json::{Value, json};

const RUNNING: &str = "tributary_requests_running";
const WAITING: &str = "tributary_requests_waiting";

/// Time for which a phase is held: the client leaves meanwhile.
const HELD: Duration = Duration::from_millis(1500);

/// Rest of a request when its phase is no longer held: one order, on a busy machine.
const ONE_ORDER: Duration = Duration::from_secs(2);

/// Requests of a client before it leaves: path and body.
fn requests(stream: bool) -> [(&'static str, Value); 2] {
    let chat = body("hop2-0", 3000);
    let text = json!({"prompt": "question : hugo stays in", "documents": chat["documents"], "max_tokens": 3000});
    [("/v1/chat/completions", chat), ("/v1/completions", text)].map(|(path, mut request)| {
        request["stream"] = stream.into();
        (path, request)
    })
}

/// Sends a request, reads nothing, and leaves after a while.
fn leaves(server: &Server, path: &str, request: &Value, after: Duration) {
    let connection = http::open(&server.address, path, request);
    std::thread::sleep(after);
    drop(connection);
}

fn nothing_is_left(server: &Server, case: &str) {
    let began = Instant::now();
    while server.metric(RUNNING) + server.metric(WAITING) > 0.0 {
        assert!(began.elapsed() < HELD + ONE_ORDER, "{case}: it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn whoever_leaves_is_let_go_of_in_every_phase() {
    // The phases of a cold request that both ranks pass, and the time before it is handed in.
    let before =
        ["engine::prepare", "worker::chunk_prefill", "worker::probe", "worker::recompute", "worker::first_token"];
    for phase in before {
        for stream in [false, true] {
            for (path, request) in requests(stream) {
                let case = format!("{phase}, {path}, streamed: {stream}");
                let ranks = if phase.starts_with("engine") { "1" } else { "2" };
                // The first request, which is not held, is the reference; every rank passes a phase
                // once in it.
                let failpoint = format!("{phase}={ranks}*off->{ranks}*sleep({})->off", HELD.as_millis());
                let server = Server::start_with_fault(&failpoint, &["--world-size", "2"]);
                let expected = server.answer(&body("vt3-1", 4));
                leaves(&server, path, &request, Duration::from_millis(500));
                nothing_is_left(&server, &case);
                assert_eq!(server.answer(&body("vt3-1", 4)), expected, "{case}");
                let answered = "tributary_requests_total{method=\"infoflow\",outcome=\"answered\"}";
                assert_eq!(server.metric(answered), 2.0, "{case}");
                server.ends_well();
            }
        }
    }
}

/// Options of a service whose model reads pictures, and a chat with pictures to it.
fn with_pictures() -> ([String; 4], Value) {
    let (model, _) = kit::vision();
    let documents: Vec<Value> = ["a.png", "c.png", "d.png"].map(|name| json!({"image": picture_url(name)})).into();
    let messages = [json!({"role": "user", "content": "which is red?"})];
    let chat = json!({"model": "demo", "messages": messages, "documents": documents, "max_tokens": 2000});
    (["--model".to_owned(), model, "--served-model-name".to_owned(), "demo".to_owned()], chat)
}

#[test]
fn whoever_leaves_is_let_go_of_while_towers_run() {
    let (model, mut request) = with_pictures();
    let options: Vec<&str> = model.iter().map(String::as_str).chain(["--world-size", "2"]).collect();
    for stream in [false, true] {
        request["stream"] = stream.into();
        let failpoint = format!("worker::vision=2*off->2*sleep({})->off", HELD.as_millis());
        let server = Server::start_with_fault(&failpoint, &options);
        let mut first = request.clone();
        (first["stream"], first["max_tokens"]) = (false.into(), 1.into());
        // Other pictures: these would be cached when the held request comes.
        first["documents"] = json!([{"image": picture_url("b.png")}, "a text"]);
        let expected = server.answer(&first);
        leaves(&server, "/v1/chat/completions", &request, Duration::from_millis(500));
        nothing_is_left(&server, "vision");
        assert_eq!(server.answer(&first), expected, "streamed: {stream}");
        assert_eq!(server.metric("tributary_requests_cancelled_total{stage=\"prefill\"}"), 1.0, "streamed: {stream}");
        server.ends_well();
    }
}

#[test]
fn a_tower_ends_at_its_next_block_when_its_client_leaves_or_its_time_is_up() {
    let (model, request) = with_pictures();
    for world in ["1", "2"] {
        let own = ["--world-size", world, "--request-timeout", "2"];
        let options: Vec<&str> = model.iter().map(String::as_str).chain(own).collect();
        // The five blocks of the tower take 4.5 s: it would be in its second or third one.
        let server = Server::start_with_fault("model::layer=sleep(900)", &options);
        let gone = |case: &str| {
            let began = Instant::now();
            while server.metric(RUNNING) + server.metric(WAITING) > 0.0 {
                assert!(began.elapsed() < ONE_LAYER, "{world}, {case}: it goes on");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        leaves(&server, "/v1/chat/completions", &request, Duration::from_millis(1000));
        gone("its client has left");
        let late = server.chat(&request);
        assert_eq!(late.status, 504, "{}", late.body);
        gone("its time is up");
        assert_eq!(server.metric("tributary_requests_cancelled_total{stage=\"prefill\"}"), 2.0, "{world}");
        server.ends_well();
    }
}

/// Every tile takes this long: one layer of a prompt of 3500 tokens takes over 5 s, on two ranks
/// too.
const SLOW_TILES: &str = "model::tile=sleep(40)";

#[test]
fn a_layer_leaves_out_its_tiles_when_its_client_leaves() {
    let text = "hugo stays in the house . ".repeat(580);
    let settings = json!({"method": "full"});
    let messages = [json!({"role": "user", "content": text})];
    let body = json!({"messages": messages, "max_tokens": 1, "tributary": settings});
    for world in ["1", "2"] {
        let server = Server::start_with_fault(SLOW_TILES, &["--world-size", world]);
        leaves(&server, "/v1/chat/completions", &body, Duration::from_millis(1000));
        let began = Instant::now();
        while server.metric(RUNNING) > 0.0 {
            assert!(began.elapsed() < Duration::from_secs(3), "{world} ranks: its layer goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(server.metric("tributary_requests_cancelled_total{stage=\"prefill\"}"), 1.0, "{world} ranks");
        server.ends_well();
    }
}

/// Every layer takes this long: a request of three passes over five layers takes over 6 s.
const SLOW_LAYERS: &str = "model::layer=sleep(400)";

/// Longest time of a request that is dropped in the middle of a layer, on a busy machine.
const ONE_LAYER: Duration = Duration::from_millis(1500);

#[test]
fn a_prefill_ends_at_the_next_layer_when_its_client_leaves_or_its_time_is_up() {
    let expected = {
        let server = Server::start(&["--world-size", "2"]);
        server.answer(&body("vt3-1", 1))
    };
    for world in ["1", "2"] {
        let server = Server::start_with_fault(SLOW_LAYERS, &["--world-size", world, "--request-timeout", "2"]);
        let gone = |case: &str| {
            let began = Instant::now();
            while server.metric(RUNNING) + server.metric(WAITING) > 0.0 {
                assert!(began.elapsed() < ONE_LAYER, "{world}, {case}: it goes on");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        leaves(&server, "/v1/chat/completions", &body("hop2-0", 1), Duration::from_millis(1000));
        gone("its client has left");
        let late = server.chat(&body("hop2-1", 1));
        assert_eq!(late.status, 504, "{}", late.body);
        gone("its time is up");
        let cancelled = "tributary_requests_cancelled_total{stage=\"prefill\"}";
        assert_eq!(server.metric(cancelled), 2.0, "{world}");
        assert_eq!(server.metric("tributary_requests_cancelled_total{stage=\"queue\"}"), 0.0, "{world}");
        server.ends_well();
        // The next request is answered as ever.
        let slow = Server::start_with_fault("model::layer=6*sleep(400)->off", &["--world-size", world]);
        leaves(&slow, "/v1/chat/completions", &body("hop2-0", 1), Duration::from_millis(500));
        slow.becomes(RUNNING, 0.0);
        assert_eq!(slow.answer(&body("vt3-1", 1)), expected, "{world}");
        slow.ends_well();
    }
}

#[test]
fn a_drain_ends_at_its_time_whatever_a_layer_takes() {
    let options = |world| ["--world-size", world, "--drain-timeout", "2", "--collective-timeout", "300"];
    // A request that comes to its next layer soon, and one that does not.
    for (failpoint, world) in
        [(SLOW_LAYERS, "2"), ("model::layer=sleep(60000)", "1"), ("model::layer=sleep(60000)", "3")]
    {
        let server = Server::start_with_fault(failpoint, &options(world));
        let connection = http::open(&server.address, "/v1/chat/completions", &body("hop2-0", 400));
        server.becomes(RUNNING, 1.0);
        let began = Instant::now();
        server.terminate();
        let ended = server.end();
        assert_eq!((ended.code, ended.errors.as_str()), (Some(0), ""), "{failpoint}, {world}");
        let took = began.elapsed();
        assert!(took > Duration::from_millis(1900) && took < Duration::from_secs(4), "{failpoint}, {world}: {took:?}");
        drop(connection);
    }
}

#[test]
fn chunks_ahead_of_use_go_with_their_client() {
    let server = Server::start_with_fault("worker::chunk_prefill=2*sleep(1500)->off", &["--world-size", "2"]);
    let documents = body("hop2-0", 1)["documents"].clone();
    let first = http::open(&server.address, "/v1/chunks", &json!({"documents": documents}));
    server.becomes(RUNNING, 1.0);
    let waits = http::open(&server.address, "/v1/chunks", &json!({"documents": body("hop2-1", 1)["documents"]}));
    server.becomes(WAITING, 1.0);
    drop((first, waits));
    nothing_is_left(&server, "chunks");
    assert_eq!(server.chat(&body("hop2-1", 1)).json()["metrics"]["cache"], "cold", "its turn never came");
    server.ends_well();
}
