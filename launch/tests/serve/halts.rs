//! Streams beside a long prompt: its prefill halts for their tokens. Answers are as without that,
//! and those who leave or are late go as ever.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::http;
use crate::kit::server::{Server, body, streamed};

/// Prefills halt at the first control point, and a layer has many.
const HALTING: [&str; 4] = ["--max-gap", "0", "--prefill-slice", "64"];

const INTERLEAVED: &str = "tributary_phase_duration_seconds_count{phase=\"interleaved_decode\"}";
const RUNNING: &str = "tributary_requests_running";

fn server(world: &str, more: &[&str]) -> Server {
    Server::start(&[&HALTING, &["--world-size", world, "--chunk-cache", "off"], more].concat())
}

/// A prompt of about 3000 tokens in documents of 300.
fn long(method: &str) -> Value {
    let document =
        |number: usize| format!("{} hugo stays in lyon .", "house of mary in lyon . ".repeat(47 + number % 3));
    let documents: Vec<String> = (0..10).map(document).collect();
    let messages = [json!({"role": "user", "content": "question : hugo stays in"})];
    json!({"messages": messages, "documents": documents, "max_tokens": 3, "tributary": {"method": method}})
}

/// A request whose answer takes long enough to be beside the prompt.
fn talk(tokens: usize) -> Value {
    let mut talk = body("hop2-0", tokens);
    talk["ignore_eos"] = true.into();
    talk
}

#[test]
fn streams_go_on_beside_a_long_prompt_and_all_answers_are_as_alone() {
    for world in ["1", "2"] {
        let server = server(world, &[]);
        let (told, _) = streamed(server.stream(&talk(800)));
        for (number, method) in ["full", "ring", "infoflow", "none"].into_iter().enumerate() {
            let alone = server.answer(&long(method));
            let mut stream = server.stream(&talk(800));
            let mut before = 0;
            while before < 3 {
                before += usize::from(stream.event().is_some());
            }
            let beside = server.answer(&long(method));
            assert_eq!(beside, alone, "{method}, {world} ranks");
            assert_eq!(server.metric(INTERLEAVED), (number + 1) as f64, "{method}, {world} ranks: it has halted");
            let rest = stream.events();
            assert_eq!(rest.last().map(String::as_str), Some("[DONE]"), "{method}, {world} ranks");
            let (again, _) = streamed(server.stream(&talk(800)));
            assert_eq!(again, told, "{method}, {world} ranks");
        }
        server.ends_well();
    }
}

#[test]
fn without_a_share_for_decoding_a_prefill_never_halts() {
    let server = server("2", &["--decode-share", "0"]);
    let mut stream = server.stream(&talk(800));
    stream.event().expect("a first token");
    server.answer(&long("full"));
    assert!(!server.get("/metrics").body.contains("phase=\"interleaved_decode\"} 1"));
    drop(stream);
    server.becomes(RUNNING, 0.0);
    server.ends_well();
}

#[test]
fn a_client_that_leaves_while_its_prefill_halts_takes_no_stream_with_it() {
    for world in ["1", "2"] {
        let server = server(world, &["--request-timeout", "20"]);
        let (told, _) = streamed(server.stream(&talk(1600)));
        let stream = server.stream(&talk(1600));
        for method in ["full", "infoflow"] {
            let connection = http::open(&server.address, "/v1/chat/completions", &long(method));
            server.becomes(RUNNING, 2.0);
            std::thread::sleep(Duration::from_millis(30));
            drop(connection);
            let began = Instant::now();
            while server.metric(RUNNING) > 1.0 {
                assert!(began.elapsed() < Duration::from_secs(10), "{method}, {world} ranks: it goes on");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let (text, _) = streamed(stream);
        assert_eq!(text, told, "{world} ranks");
        server.ends_well();
    }
}

#[test]
fn options_of_halts_are_refused_before_the_service_listens() {
    let refused = [
        (["--decode-share", "1"], "--decode-share 1: must be from 0 to 0.9"),
        (["--decode-share", "nan"], "--decode-share NaN: must be from 0 to 0.9"),
        (["--prefill-slice", "0"], "--prefill-slice 0: must be at least 1"),
        (["--max-gap", "60001"], "--max-gap 60001: must be at most 60000 ms"),
    ];
    for (options, why) in refused {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(["serve", "--model", &crate::kit::demo(), "--listen", "127.0.0.1:0"]).args(options);
        let output = command.output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.trim_end()), (Some(64), &*format!("tributary: {why}")));
        assert!(output.stdout.is_empty(), "it does not listen");
    }
}
