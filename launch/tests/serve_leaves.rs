//! Clients that leave, in every phase of a request: it is let go of within one order, and others are answered as before. Built with
//! the feature `failpoints`.

mod kit;

use std::time::{Duration, Instant};

use kit::http;
use kit::server::{Server, body};
use serde_json::{Value, json};

const RUNNING: &str = "tributary_requests_running";
const WAITING: &str = "tributary_requests_waiting";

/// How long a phase is held: the client leaves meanwhile.
const HELD: Duration = Duration::from_millis(1500);

/// What is left of a request when its phase is no longer held: one order, on a busy machine.
const ONE_ORDER: Duration = Duration::from_secs(2);

/// What a client asks before it leaves: where, and with which body.
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
                // The first request, which nobody holds, is the yardstick; every rank passes a phase once in it.
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
