//! Refusals: in OpenAI's form over HTTP, in one line with an exit code on the command line.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::kit::http::{self, Response};
use crate::kit::server::{Server, body};
use crate::kit::{demo, tributary};

/// The error's object, after its shape has been checked.
fn error(response: &Response, status: u16) -> Value {
    assert_eq!(response.status, status, "{}", response.body);
    let error = response.json()["error"].clone();
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty() && !message.contains('\n')), "{error}");
    assert!(error["type"].is_string(), "{error}");
    for key in ["param", "code"] {
        assert!(error.get(key).is_some(), "{key} is there, if only as null: {error}");
    }
    error
}

#[test]
fn errors_have_openais_shape() {
    let server = Server::start(&["--world-size", "2"]);
    let with = |name: &str, value: Value| {
        let mut request = body("hop2-0", 2);
        request[name] = value;
        server.chat(&request)
    };
    let chat = "/v1/chat/completions";
    for text in ["", "{", "[1, 2]", "{\"messages\": 5}", "{\"documents\": [1], \"messages\": []}"] {
        let found = error(&http::post_text(&server.address, chat, text), 400);
        assert_eq!(found["type"], "invalid_request_error", "{text}");
    }
    let unknown = error(&with("model", json!("gpt-4")), 404);
    assert_eq!((&unknown["param"], &unknown["code"]), (&json!("model"), &json!("model_not_found")));
    let refused = [
        ("n", json!(65)),
        ("stop", json!([".", ""])),
        ("top_k", json!(-2)),
        ("top_logprobs", json!(21)),
        ("stream_options", json!({"include_usage": true})),
        ("logprobs", json!(1)),
        ("tools", json!([{"type": "function"}])),
        ("document", json!(["a misspelt name"])),
        ("temperature", json!(-1)),
        ("top_p", json!(1.5)),
        ("max_tokens", json!(-1)),
    ];
    for (name, value) in refused {
        let found = error(&with(name, value), 400);
        assert_eq!(found["param"], name, "{found}");
        assert!(!found["message"].as_str().expect("a text").contains("--"), "no option of the command: {found}");
    }
    for (spec, says) in
        [("relay:world=2", "unknown option"), ("relay:rato=1", "`ratio`?"), ("none:ratio=0.5", "no difference")]
    {
        let refused = error(&with("tributary", json!({"method": spec})), 400);
        assert!(refused["message"].as_str().is_some_and(|message| message.contains(says)), "{spec}: {refused}");
    }
    let method = error(&with("tributary", json!({"method": "fastest"})), 400);
    assert_eq!(method["param"], "tributary.method");
    assert!(method["message"].as_str().expect("a text").contains("infoflow"), "it says which there are: {method}");
    error(&with("tributary", json!({"metod": "full"})), 400);
    let long = error(&with("max_tokens", json!(100_000)), 400);
    let message = long["message"].as_str().expect("a text");
    assert!(message.contains("100000") && message.contains("16384"), "both numbers: {message}");
    error(&with("messages", json!([{"role": "user", "content": " "}])), 400);

    let elsewhere = http::send_as(&server.address, "example.com", "GET /v1/models", None);
    assert_eq!(elsewhere.expect("it answers").status, 403, "no web page reaches it by another name");
    error(&server.get("/v1/nothing"), 404);
    error(&server.get(chat), 405);
    assert_eq!(server.metric("tributary_request_errors_total{error_type=\"server_error\"}"), 0.0);
    assert_eq!(server.answer(&body("hop2-0", 1)), "lyon", "and it goes on");
    server.ends_well();
}

#[test]
fn more_than_may_wait_are_turned_away() {
    let server = Server::start(&["--max-waiting", "1", "--max-running", "1"]);
    let outcomes: Vec<u16> = std::thread::scope(|scope| {
        let ask = || {
            let response = server.chat(&body("hop2-0", 200));
            if response.status == 429 {
                assert_eq!(error(&response, 429)["type"], "rate_limit_error");
                assert!(response.header("retry-after").is_some());
            }
            response.status
        };
        let clients: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().map(|client| client.join().expect("no panic")).collect()
    });
    assert!(outcomes.iter().all(|status| [200, 429].contains(status)), "{outcomes:?}");
    assert!(outcomes.contains(&200) && outcomes.contains(&429), "{outcomes:?}");
    server.ends_well();
}

#[test]
fn services_that_cannot_be_are_refused_in_one_line() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("an address").to_string();
    let demo = demo();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--listen", &taken], 78, &taken),
        (&["--listen", "0.0.0.0:0"], 64, "--insecure"),
        (&["--synthetic", "2x8"], 64, "--synthetic"),
        (&["--max-waiting", "0"], 64, "--max-waiting"),
        (&["--policy", "shortest"], 64, "add --max-age SECONDS"),
        (&["--max-age", "30"], 64, "--max-age 30: only with --policy shortest"),
    ];
    for (options, code, says) in cases {
        let output = tributary(&[&["serve", "--model", &demo][..], options].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{options:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{options:?}: {errors}");
        assert!(errors.contains(says), "{options:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}
