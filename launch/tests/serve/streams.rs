//! Events of a stream, and their times: no event with data comes before there is a token, and each
//! token has one.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use serde_json::{Value, json};

use crate::kit::server::{Server, body, streamed};

/// The lines of a stream that are not empty and no lengths of chunks, each with the seconds after
/// which it came.
fn lines(server: &Server, path: &str, body: &Value) -> Vec<(f64, String)> {
    let began = Instant::now();
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    let text = body.to_string();
    let head = "HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
    write!(stream, "POST {path} {head}\r\ncontent-length: {}\r\n\r\n{text}", text.len()).expect("written");
    let lines = BufReader::new(stream).lines().map(|line| line.expect("text"));
    let told = lines.filter(|line| line.starts_with("data: ") || line.starts_with(':'));
    told.map(|line| (began.elapsed().as_secs_f64(), line)).collect()
}

#[test]
fn no_data_comes_before_there_is_a_token() {
    // The first token takes longer than a response waits with its head.
    let server = Server::start_with_fault("worker::logits=sleep(2500)", &[]);
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let mut request = body("hop2-0", 1);
        (request["stream"], request["prompt"]) = (true.into(), "question : hugo stays in".into());
        let other = if path.contains("chat") { "prompt" } else { "messages" };
        request.as_object_mut().expect("an object").remove(other);
        let lines = lines(&server, path, &request);
        assert!(lines[0].1.starts_with(": ") && lines[0].0 < 2.4, "the response opens with a comment: {lines:?}");
        let (at, first) = lines.iter().find(|(_, line)| line.starts_with("data: ")).expect("data");
        assert!(*at >= 2.4, "{at} s: {first}");
        let ttft = server.metric("tributary_time_to_first_token_seconds_sum{method=\"infoflow\",cache=\"cold\"}");
        assert!(ttft == 0.0 || ttft >= 2.4, "{ttft}");
        let part: Value = serde_json::from_str(first.trim_start_matches("data: ")).expect("JSON");
        if path.contains("chat") {
            assert_eq!(part["choices"][0]["delta"]["role"], "assistant", "the role comes with the first token");
            assert!(!part["choices"][0]["delta"]["content"].as_str().expect("a text").is_empty(), "{part}");
        }
    }
    server.ends_well();
}

#[test]
fn each_token_has_a_part_and_usage_is_told_where_it_is_asked_for() {
    let server = Server::start(&[]);
    let mut request = body("hop2-0", 6);
    request["ignore_eos"] = true.into();
    request["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let (text, events) = streamed(server.stream(&request));
    assert!(!text.is_empty());
    let parts: Vec<&Value> = events.iter().filter(|event| !event["choices"][0]["delta"]["content"].is_null()).collect();
    assert_eq!(parts.len(), 6, "a part for each token, and none for the role alone");
    for (index, part) in parts.iter().enumerate() {
        assert_eq!(part["usage"]["completion_tokens"], index + 1, "{part}");
        assert_eq!(part["choices"][0]["delta"].get("role").is_some(), index == 0);
    }
    let last = &events[events.len() - 1];
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(6)));
    assert_eq!(last["usage"]["prompt_tokens"], parts[0]["usage"]["prompt_tokens"]);
    server.ends_well();
}

#[test]
fn several_answers_come_side_by_side() {
    let server = Server::start(&[]);
    let greedy = server.answer(&body("hop2-0", 5));
    let mut request = body("hop2-0", 5);
    request["n"] = 3.into();
    let whole = server.chat(&request).json();
    let texts: Vec<&str> = whole["choices"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["message"]["content"].as_str())
        .collect();
    assert_eq!(texts, [greedy.as_str(); 3]);
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens"], 15, "of all answers; the prompt's count once: {usage}");
    assert_eq!(usage["prompt_tokens"], server.chat(&body("hop2-0", 5)).json()["usage"]["prompt_tokens"]);
    let mut events = server.stream(&request).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let mut streamed = vec![String::new(); 3];
    let mut ended = 0;
    for event in events {
        let event: Value = serde_json::from_str(&event).expect("JSON");
        let choice = &event["choices"][0];
        let index = choice["index"].as_u64().expect("a number") as usize;
        streamed[index] += choice["delta"]["content"].as_str().unwrap_or_default();
        ended += usize::from(!choice["finish_reason"].is_null());
    }
    assert_eq!((streamed, ended), (vec![greedy; 3], 3));
    // Each has its own seed.
    (request["temperature"], request["seed"]) = (2.into(), 7.into());
    let hot = server.chat(&request).json();
    let texts: Vec<&str> = hot["choices"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["message"]["content"].as_str())
        .collect();
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
    server.ends_well();
}
