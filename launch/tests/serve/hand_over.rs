//! `POST /v1/prefill` and the reads after it, down to the bytes: keys and values of every method
//! that can be handed over, their hash, ids that expire, keys that they are bound to, memory that
//! they take.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::http::{Response, post, send, send_with};
use crate::kit::server::{Server, body};

/// Asks for a prefill.
fn prefill(server: &Server, method: &str) -> Response {
    let mut request = body("hop2-0", 4);
    request["tributary"] = json!({"method": method});
    post(&server.address, "/v1/prefill", &request)
}

/// An accepted prefill.
fn planned(server: &Server, method: &str) -> Value {
    let answer = prefill(server, method);
    assert_eq!(answer.status, 202, "{method}: {}", answer.body);
    answer.json()
}

fn id(prefill: &Value) -> &str {
    prefill["id"].as_str().expect("an id")
}

fn read(server: &Server, path: &str) -> (u16, Vec<u8>) {
    send(&server.address, &format!("GET {path}"), None).expect("the service answers").bytes()
}

fn delete(server: &Server, id: &str) -> u16 {
    send(&server.address, &format!("DELETE /v1/prefill/{id}"), None).expect("the service answers").status
}

/// A prefill that has ended; its last layer is there shortly before.
fn done(server: &Server, prefill: &Value) -> Value {
    let began = Instant::now();
    loop {
        let state = server.get(&format!("/v1/prefill/{}", id(prefill))).json();
        if state["status"] != "planned" {
            assert_eq!(state["status"], "done");
            return state;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{state}");
    }
}

/// The rows of a layer, whose hash is right.
fn layer(server: &Server, prefill: &Value, layer: u64, part: &str) -> Vec<u8> {
    let (status, mut bytes) = read(server, &format!("/v1/kv/{}/{layer}{part}", id(prefill)));
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&bytes));
    let hash = bytes.split_off(bytes.len() - 32);
    assert_eq!(blake3::hash(&bytes).as_bytes()[..], hash, "the hash of a layer");
    bytes
}

fn number(prefill: &Value, name: &str) -> usize {
    prefill[name].as_u64().expect(name) as usize
}

#[test]
fn every_layer_is_read_whole_or_in_parts_and_released() {
    let server = Server::start(&["--world-size", "2"]);
    let mut read_bytes = 0;
    for (method, exact) in [
        ("full", true),
        ("ring", true),
        ("prefix-cache", true),
        ("none", false),
        ("infoflow", false),
        ("infoflow:ratio=1", true),
        ("relay:reorder", false),
    ] {
        let prefill = planned(&server, method);
        let (tokens, layers) = (number(&prefill, "tokens"), number(&prefill, "layers"));
        let row = 2 * number(&prefill, "kv_heads") * number(&prefill, "head_dim") * 4;
        assert_eq!((&prefill["exact"], &prefill["dtype"]), (&json!(exact), &json!("f32")), "{method}");
        assert_eq!(prefill["cache_salt"].is_null(), exact, "{method}: a salt where it is not exact");
        assert_eq!(prefill["token_ids"].as_array().expect("ids").len(), tokens, "{method}");
        for number in 0..layers as u64 {
            let whole = layer(&server, &prefill, number, "");
            assert_eq!(whole.len(), tokens * row, "{method}, layer {number}");
            let parts = [
                layer(&server, &prefill, number, "?rows=7"),
                layer(&server, &prefill, number, &format!("?first=7&rows={}", tokens - 8)),
                layer(&server, &prefill, number, &format!("?first={}", tokens - 1)),
            ];
            assert!(parts.concat() == whole, "{method}, layer {number}: its parts are not the whole");
            let heads =
                [layer(&server, &prefill, number, "?heads=1"), layer(&server, &prefill, number, "?first_head=1")];
            let [first, second] = heads.each_ref().map(|head| head.chunks_exact(row / 4));
            let both: Vec<u8> = first.zip(second).flat_map(|(first, second)| [first, second].concat()).collect();
            assert!(both == whole, "{method}, layer {number}: its heads are not the whole");
            read_bytes += 3 * whole.len();
        }
        let state = done(&server, &prefill);
        let mut chat = body("hop2-0", 1);
        chat["tributary"] = json!({"method": method});
        assert_eq!(state["first_token"]["text"], server.answer(&chat).as_str(), "{method}");
        assert!(state["first_token"]["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0), "{method}");
        assert_eq!(state["metrics"]["exact"], exact, "{method}");
        assert_eq!(server.metric("tributary_held_sequences"), 1.0);
        assert_eq!(delete(&server, id(&prefill)), 204);
        assert_eq!(delete(&server, id(&prefill)), 404, "it is released already");
        assert_eq!(read(&server, &format!("/v1/kv/{}/0", id(&prefill))).0, 404);
        server.becomes("tributary_held_sequences", 0.0);
    }
    assert_eq!(server.metric("tributary_handed_over_bytes_total"), read_bytes as f64);
    server.ends_well();
}

#[test]
fn requests_that_cannot_be_are_refused_in_a_line() {
    let server = Server::start(&[]);
    for (method, word) in [("ape", "ape"), ("infoflow:evict=snapkv:keep=50%", "evicted"), ("samkv", "drops rows")] {
        let refused = prefill(&server, method);
        let message = refused.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert_eq!(refused.status, 400, "{method}: {message}");
        assert!(message.contains("cannot be handed over") && message.contains(word), "{method}: {message}");
    }
    let prefill = planned(&server, "infoflow");
    let tokens = number(&prefill, "tokens");
    for (path, status, word) in [
        (format!("/v1/kv/{}/99", id(&prefill)), 400, "layer 99"),
        (format!("/v1/kv/{}/x", id(&prefill)), 404, "/v1/kv/ID/LAYER"),
        (format!("/v1/kv/{}/0?first={tokens}", id(&prefill)), 400, "the prompt has"),
        (format!("/v1/kv/{}/0?rows=0", id(&prefill)), 400, "the prompt has"),
        (format!("/v1/kv/{}/0?first=1&rows={tokens}", id(&prefill)), 400, "the prompt has"),
        (format!("/v1/kv/{}/0?rows=18446744073709551615&first=5", id(&prefill)), 400, "the prompt has"),
        (format!("/v1/kv/{}/0?first_head=1&heads=2", id(&prefill)), 400, "heads 1 to 3: a layer has 2"),
        (format!("/v1/kv/{}/0?heads=0", id(&prefill)), 400, "heads 0 to 0: a layer has 2"),
        (format!("/v1/kv/{}/0?range=1", id(&prefill)), 400, "range"),
        ("/v1/kv/kv-0/0".to_owned(), 404, "there is no prefill"),
        ("/v1/prefill/kv-0".to_owned(), 404, "there is no prefill"),
    ] {
        let (found, bytes) = read(&server, &path);
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(found, status, "{path}: {text}");
        assert!(text.contains(word), "{path}: {text}");
    }
    assert_eq!(server.get("/v1/prefill").status, 405);
    server.ends_well();
}

#[test]
fn what_is_held_expires_and_keeps_others_waiting_where_memory_is_bounded() {
    let server = Server::start(&["--hand-over-expiry", "2", "--hand-over-memory", "1"]);
    let first = planned(&server, "infoflow");
    layer(&server, &first, 0, "");
    std::thread::scope(|scope| {
        // One has room whatever it takes; the next waits for it, and an answer passes both.
        let second = scope.spawn(|| planned(&server, "full"));
        server.becomes("tributary_requests_waiting", 1.0);
        server.answer(&body("hop2-1", 2));
        assert!(!second.is_finished(), "the bound of held memory keeps it waiting");
        let second = second.join().expect("it is planned when the first has expired");
        assert_eq!(read(&server, &format!("/v1/kv/{}/0", id(&first))).0, 404, "it has expired");
        layer(&server, &second, 1, "");
    });
    std::thread::sleep(Duration::from_millis(2100));
    server.becomes("tributary_held_sequences", 0.0);
    server.ends_well();
}

#[test]
fn an_id_is_of_use_to_the_key_that_got_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "one\ntwo\n").expect("written");
    std::fs::set_permissions(&keys, Permissions::from_mode(0o600)).expect("ours alone");
    let server = Server::start(&["--api-key-file", keys.to_str().expect("text")]);
    let ask = |line: &str, key: &str, body: Option<&str>| {
        send_with(&server.address, line, &format!("authorization: Bearer {key}\r\n"), body).expect("it answers").bytes()
    };
    let (status, bytes) = ask("POST /v1/prefill", "one", Some(&body("hop2-0", 4).to_string()));
    let prefill: Value = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!(status, 202, "{prefill}");
    for (line, own) in [
        (format!("GET /v1/prefill/{}", id(&prefill)), 200),
        (format!("GET /v1/kv/{}/0", id(&prefill)), 200),
        (format!("DELETE /v1/prefill/{}", id(&prefill)), 204),
    ] {
        assert_eq!(ask(&line, "two", None).0, 404, "{line} by another key");
        assert_eq!(ask(&line, "three", None).0, 401, "{line} by no key");
        assert_eq!(ask(&line, "one", None).0, own, "{line}");
    }
    server.ends_well();
}
