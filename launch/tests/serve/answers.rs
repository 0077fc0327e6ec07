//! Answers: the same over HTTP as on the command line, whole and as a stream.

use serde_json::{Value, json};

use crate::kit::server::{Server, body, streamed};
use crate::kit::{demo, json, request};

/// Answer of the command.
fn prefill(name: &str, max_tokens: usize, more: &[&str]) -> String {
    let (demo, request, max_tokens) = (demo(), request(name), max_tokens.to_string());
    let base = ["prefill", "--json", "--model", &demo, "--request", &request, "--max-tokens", &max_tokens];
    json(&[&base[..], more].concat())["answer"].as_str().expect("a text").to_owned()
}

/// The answer as a stream, whose parts are those that OpenAI's clients expect.
fn answer_in_parts(server: &Server, request: &Value) -> String {
    let mut request = request.clone();
    request["stream_options"] = json!({"include_usage": true});
    let (text, events) = streamed(server.stream(&request));
    let (first, last) = (&events[0], &events[events.len() - 1]);
    let delta = &first["choices"][0]["delta"];
    assert!(delta["role"] == "assistant" && delta["content"] != "", "the role comes with the first token: {first}");
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event["id"] == first["id"]));
    let closing = &events[events.len() - 2];
    assert_eq!(closing["choices"][0]["delta"], json!({}));
    let ended = |event: &&Value| event["choices"][0]["finish_reason"].is_string();
    assert_eq!(events.iter().filter(ended).count(), 1);
    assert!(["stop", "length"].contains(&closing["choices"][0]["finish_reason"].as_str().expect("a reason")));
    measured(&closing["metrics"]);
    assert_eq!(last["choices"], json!([]));
    used(&last["usage"]);
    assert_eq!(events.iter().filter(|event| event.get("usage").is_some()).count(), 1, "usage comes once");
    text
}

fn measured(metrics: &Value) {
    let ttft_ms = metrics["ttft_ms"].as_f64().expect("a time");
    assert!(ttft_ms > 0.0 && metrics["total_ms"].as_f64().expect("a time") >= ttft_ms, "{metrics}");
    for phase in ["tokenize", "queue", "first_token"] {
        assert!(metrics["phases_ms"][phase].is_number(), "{phase}: {metrics}");
    }
}

fn used(usage: &Value) {
    let number = |key: &str| usage[key].as_u64().expect("a number");
    assert_eq!(number("prompt_tokens") + number("completion_tokens"), number("total_tokens"));
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64(), "{usage}");
}

#[test]
fn answers_are_those_of_the_command_plain_and_streamed() {
    for world in ["1", "2"] {
        let server = Server::start(&["--world-size", world]);
        assert_eq!(
            server.greeting,
            format!("serving demo on http://{} with {world} ranks", server.address),
            "what scripts read"
        );
        for name in ["hop2-0", "vt3-1"] {
            let expected = prefill(name, 8, &["--world-size", world]);
            let response = server.chat(&body(name, 8));
            assert_eq!(response.status, 200, "{}", response.body);
            let completion = response.json();
            let choice = &completion["choices"][0];
            assert_eq!(completion["object"], "chat.completion");
            assert_eq!(choice["message"]["role"], "assistant");
            assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(expected), &json!("length")));
            assert_eq!(completion["usage"]["completion_tokens"], 8);
            used(&completion["usage"]);
            measured(&completion["metrics"]);
            assert_eq!(completion["metrics"]["world_size"].to_string(), world);
            assert_eq!(answer_in_parts(&server, &body(name, 8)), expected, "world {world}");
        }
        let warm = server.chat(&body("hop2-0", 1)).json();
        assert_eq!(warm["metrics"]["cache"], "warm");
        let usage = &warm["usage"];
        assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(400), "{usage}");
        server.ends_well();
    }
}

#[test]
fn a_request_chooses_its_method_and_its_sampling() {
    let server = Server::start(&["--world-size", "2", "--max-tokens", "3"]);
    let with = |more: Value| {
        let mut request = body("vt3-1", 4);
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        request
    };
    let relay = server.chat(&with(json!({"tributary": {"method": "relay"}}))).json();
    let expected = prefill("vt3-1", 4, &["--world-size", "2", "--method", "relay"]);
    assert_eq!(relay["choices"][0]["message"]["content"], json!(expected));
    assert_eq!(relay["metrics"]["method"], "relay");
    let spec = "relay:ratio=1:layout=hl-tp:evict=streamingllm:keep=40%";
    let own = server.chat(&with(json!({"tributary": {"method": spec}}))).json();
    assert_eq!(own["metrics"]["method"], "relay", "{own}");
    assert_eq!(own["choices"][0]["message"]["content"].as_str().map(str::is_empty), Some(false), "{own}");
    let full = server.chat(&with(json!({"tributary": {"method": "full", "ratio": null}}))).json();
    assert_eq!((&full["metrics"]["method"], &full["metrics"]["exact"]), (&json!("full"), &json!(true)));

    let warm = json!({"temperature": 1.5, "top_p": 0.9, "seed": 7, "max_completion_tokens": 12});
    let options = ["--world-size", "2", "--temperature", "1.5", "--top-p", "0.9", "--seed", "7"];
    assert_eq!(server.answer(&with(warm)), prefill("vt3-1", 12, &options));

    let mut request = body("vt3-1", 4);
    request.as_object_mut().expect("an object").remove("max_tokens");
    assert_eq!(server.chat(&request).json()["usage"]["completion_tokens"], 3, "the server's own number");
    server.ends_well();
}

#[test]
fn a_system_message_is_the_prefix_and_documents_may_be_missing() {
    let server = Server::start(&[]);
    let system = "passage it rains slowly today .";
    let mut request = body("hop2-0", 6);
    request["messages"] = json!([{"role": "system", "content": system}, request["messages"][0]]);
    assert_eq!(server.answer(&request), prefill("hop2-0", 6, &["--prefix", system]));
    assert_eq!(answer_in_parts(&server, &request), server.answer(&request));

    let question = "house of mary in lyon . hugo stays with mary . question : hugo stays in";
    let mut request = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 2});
    let plain = server.chat(&request).json();
    assert_eq!(plain["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    request["messages"][0]["content"] = json!([{"type": "text", "text": question}]);
    request["documents"] = json!([]);
    assert_eq!(server.answer(&request), plain["choices"][0]["message"]["content"].as_str().expect("a text"));
    assert_eq!(answer_in_parts(&server, &request), server.answer(&request));

    let titled = json!([{"title": "passage", "text": "hugo stays with mary ."}, "passage house of mary in lyon ."]);
    request["documents"] = titled;
    assert_eq!(server.chat(&request).status, 200);
    server.ends_well();
}

/// The prompt's prefix comes from the cache in later turns, and answers are those of a full
/// prefill: of conversations without documents by every method that works in chunks, with documents
/// by the prefix cache.
#[test]
fn later_turns_of_a_conversation_reuse_the_earlier_ones() {
    let reference = Server::start(&["--method", "full"]);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    let long = "house of mary in lyon . hugo stays with mary . ".repeat(8);
    // Without a template a message alone has no label, so the conversation has begun before.
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let turns = [said("user", &long), said("assistant", "yes"), said("user", "question : hugo stays in")];
    let plain = (json!({"messages": turns, "max_tokens": 4}), 64);
    for (method, conversations) in
        [("prefix-cache", vec![(body("hop2-0", 4), 400), plain.clone()]), ("relay", vec![plain])]
    {
        let server = Server::start(&["--world-size", "2", "--method", method]);
        for (mut request, least) in conversations {
            let first = server.chat(&request).json();
            assert_eq!(text(&first), reference.answer(&request));
            assert!(cached(&first) < 8, "the template's head at most: {first}");
            let mut messages = request["messages"].as_array().expect("messages").clone();
            messages.extend([said("assistant", &text(&first)), said("user", "question : mary stays in")]);
            request["messages"] = json!(messages);
            let second = server.chat(&request).json();
            assert_eq!(text(&second), reference.answer(&request));
            assert!(cached(&second) >= least, "{second}");
            assert_eq!(second["metrics"]["conversation"], "reused");
            let again = server.chat(&request).json();
            assert_eq!(cached(&again), again["usage"]["prompt_tokens"].as_u64().expect("a number") - 1, "{again}");
            assert_eq!(again["metrics"]["method"], "prefix-cache");
        }
        server.ends_well();
    }
    reference.ends_well();
}

/// Exact methods over several ranks go on from earlier turns; a method that selects does so anew in
/// each turn unless it is told to keep the first selection.
#[test]
fn later_turns_go_on_as_the_service_or_the_request_says() {
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let turns = |server: &Server, method: &str, conversation: Option<&str>| -> Vec<(Value, String)> {
        let mut messages = vec![said("user", "a"), said("assistant", "b"), said("user", "question : hugo stays in")];
        let mut request = body("hop2-0", 4);
        request["tributary"] = json!({"method": method});
        if let Some(conversation) = conversation {
            request["tributary"]["conversation"] = json!(conversation);
        }
        let mut turn = |question: &str| {
            request["messages"] = json!(messages);
            let answer = server.chat(&request).json();
            let text = answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
            messages.extend([said("assistant", &text), said("user", question)]);
            (answer["metrics"].get("conversation").cloned().unwrap_or_default(), text)
        };
        vec![turn("question : mary stays in"), turn("question : elena stays in"), turn("")]
    };
    let told = |turns: &[(Value, String)]| turns.iter().map(|(told, _)| told.clone()).collect::<Vec<_>>();
    let (not, reused) = (Value::Null, json!("reused"));
    let server = Server::start(&["--world-size", "2"]);
    let full = turns(&server, "full", Some("off"));
    assert_eq!(told(&full), [not.clone(), not.clone(), not.clone()]);
    for method in ["full", "ring", "pass-q", "prefix-cache"] {
        let found = turns(&server, method, None);
        assert_eq!(told(&found)[1..], [reused.clone(), reused.clone()], "{method}");
        assert!(found.iter().zip(&full).all(|(found, full)| found.1 == full.1), "{method}: {found:?}, {full:?}");
    }
    assert_eq!(told(&turns(&server, "infoflow", None)), [not.clone(), not.clone(), not.clone()]);
    assert_eq!(told(&turns(&server, "infoflow", Some("reuse"))), [not.clone(), reused.clone(), reused.clone()]);
    let request = json!({"messages": [said("user", "a")], "tributary": {"conversation": "perhaps"}});
    let refused = server.chat(&request);
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("tributary.conversation")));
    let kept = server
        .get("/metrics")
        .body
        .lines()
        .find(|line| line.starts_with("tributary_kept_sequences "))
        .map(str::to_owned);
    assert!(kept.is_some_and(|line| line != "tributary_kept_sequences 0"));
    server.ends_well();
    let nothing = Server::start(&["--conversation", "off"]);
    assert_eq!(told(&turns(&nothing, "full", None)), [not.clone(), not.clone(), not]);
    nothing.ends_well();
}

#[test]
fn clients_at_once_get_their_own_answers() {
    let names = ["hop2-0", "hop2-1", "vt2-0", "vt3-1", "vt3-5", "hop2_back-0"];
    let server = Server::start(&["--world-size", "2", "--max-prefill-burst", "2"]);
    let alone: Vec<String> = names.iter().map(|name| prefill(name, 10, &["--world-size", "2"])).collect();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (server, alone) = (&server, &alone);
            scope.spawn(move || {
                for turn in 0..names.len() {
                    let index = (turn + client) % names.len();
                    let request = body(names[index], 10);
                    let answer = match (turn + client) % 2 {
                        0 => server.answer(&request),
                        _ => streamed(server.stream(&request)).0,
                    };
                    assert_eq!(answer, alone[index], "client {client}, {}", names[index]);
                }
            });
        }
    });
    assert_eq!(server.metric("tributary_requests_total{method=\"infoflow\",outcome=\"answered\"}"), 24.0);
    assert_eq!(server.metric("tributary_requests_running"), 0.0);
    server.ends_well();
}

#[test]
fn it_says_what_it_is() {
    let server = Server::start(&["--served-model-name", "a/b"]);
    assert_eq!((server.get("/health").status, server.get("/ready").status), (200, 200));
    assert_eq!(server.get("/version").json()["version"], env!("CARGO_PKG_VERSION"));
    let models = server.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("a/b")));
    assert_eq!(server.get("/v1/models/a/b").json(), models["data"][0]);
    assert_eq!(server.get("/v1/models/c").status, 404);
    server.ends_well();
}
