//! Requests of real clients, byte for byte (`launch/tests/recorded`): every body is answered.
//! `make clients` runs the clients themselves.

use std::path::PathBuf;

use serde_json::Value;

use crate::kit::http;
use crate::kit::server::Server;

fn recordings() -> Vec<(String, Value)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("recordings").map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    let lines = files.iter().flat_map(|file| {
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).expect("text");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        lines.into_iter().map(move |line| (name.clone(), line))
    });
    lines.collect()
}

#[test]
fn bodies_of_real_clients_are_answered() {
    let server = Server::start(&["--world-size", "2"]);
    let mut answered = std::collections::BTreeMap::<String, usize>::new();
    for (client, request) in recordings() {
        let (method, path) = (request["method"].as_str().expect("a method"), request["path"].as_str().expect("a path"));
        let served = ["/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics"];
        if !served.contains(&path) {
            // Probes for features of another server: a clear refusal is an answer.
            let body = (!request["body"].is_null()).then(|| request["body"].to_string());
            let probe = http::send(&server.address, &format!("{method} {path}"), body.as_deref()).expect("an answer");
            assert!(matches!(probe.status, 404 | 405), "{client}: {method} {path} is {}", probe.status);
            continue;
        }
        if method == "GET" {
            assert_eq!(server.get(path).status, 200, "{client}: {path}");
            continue;
        }
        let body = &request["body"];
        let line = format!("{method} {path}");
        let stream = http::send(&server.address, &line, Some(&body.to_string())).expect("the service answers");
        let status = stream.status;
        if body["stream"] == true && status == 200 {
            let events = stream.events();
            assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{client}: {body}");
            let parts: Vec<Value> =
                events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
            let wants_usage = body["stream_options"]["include_usage"] == true;
            let usage = &parts[parts.len() - 1]["usage"];
            assert_eq!(usage.is_object(), wants_usage, "{client}: {body}");
            let most = body.get("max_completion_tokens").or(body.get("max_tokens")).and_then(Value::as_u64);
            if let (true, Some(most), true) = (wants_usage, most, body["ignore_eos"] == true) {
                assert_eq!(usage["completion_tokens"], most, "{client} wants {most} tokens: {body}");
            }
        } else {
            let whole = stream.whole();
            assert_eq!(status, 200, "{client}: {body}\n{}", whole.body);
            assert!(!whole.json()["choices"].as_array().expect("choices").is_empty(), "{client}");
        }
        *answered.entry(client).or_default() += 1;
    }
    let wanted =
        ["guidellm", "vllm-bench-openai", "inference-perf", "aiperf", "lm-eval", "openai-python", "openai-node"];
    for client in wanted {
        assert!(answered.keys().any(|name| name.starts_with(client)), "nothing of {client}: {answered:?}");
    }
    server.ends_well();
}

#[test]
fn multiple_choice_is_scored_as_the_evaluation_harness_asks_for_it() {
    let server = Server::start(&["--world-size", "2"]);
    let asks =
        recordings().into_iter().filter(|(client, request)| client == "lm-eval" && request["body"]["echo"] == true);
    let mut prompts = 0;
    for (_, request) in asks {
        let body = &request["body"];
        let scored = http::post(&server.address, "/v1/completions", body).json();
        let choices = scored["choices"].as_array().expect("choices");
        let asked = body["prompt"].as_array().expect("prompts");
        assert_eq!(choices.len(), asked.len());
        for (choice, prompt) in choices.iter().zip(asked) {
            let length = prompt.as_array().expect("ids").len();
            let (told, top) = (&choice["logprobs"]["token_logprobs"], &choice["logprobs"]["top_logprobs"]);
            let told = told.as_array().expect("numbers");
            // The harness takes the log-probabilities after the context, except that of the drawn
            // token.
            assert_eq!((told.len(), top.as_array().map(Vec::len)), (length + 1, Some(length + 1)), "{choice}");
            assert!(told[0].is_null() && told[1..].iter().all(|number| number.as_f64().is_some_and(|n| n <= 0.0)));
            prompts += 1;
        }
    }
    assert!(prompts >= 4, "{prompts} prompts");
    server.ends_well();
}
