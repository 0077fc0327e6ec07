//! `serve --decode-at`: the first token is drawn here, the others by another server, which reads
//! the keys and values. A decoder of the tests' own stands in for vLLM.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::http::{Response, post, send, send_with};
use crate::kit::server::{Server, body, streamed};

/// What the stand-in does with the next requests.
#[derive(Clone)]
enum Behaviour {
    /// Draws these tokens.
    Draws(Vec<u32>),
    /// Refuses.
    Refuses,
    /// Draws these, and breaks off.
    BreaksOff(Vec<u32>),
    /// Draws this one, and says an error.
    Fails(u32),
    /// Draws this one again and again, until its client leaves.
    NeverEnds(u32),
    /// Draws texts without ids.
    TellsNoIds,
}

/// A decoder, and the requests that it got.
struct Decoder {
    url: String,
    behaviour: Arc<Mutex<Behaviour>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Decoder {
    /// Listens, in threads that end with the test.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let (behaviour, asked) = (Arc::new(Mutex::new(Behaviour::Refuses)), Arc::<Mutex<Vec<Value>>>::default());
        let (does, notes) = (Arc::clone(&behaviour), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (does, notes) = (Arc::clone(&does), Arc::clone(&notes));
                std::thread::spawn(move || {
                    let mut stream = stream.expect("a client");
                    notes.lock().expect("unpoisoned").push(request_of(&stream));
                    let does = does.lock().expect("unpoisoned").clone();
                    // Its client may leave at any time.
                    let _ = answer(&mut stream, does);
                });
            }
        });
        Self { url, behaviour, asked }
    }

    fn does(&self, behaviour: Behaviour) {
        *self.behaviour.lock().expect("unpoisoned") = behaviour;
    }

    /// The last request.
    fn asked(&self) -> Value {
        self.asked.lock().expect("unpoisoned").last().expect("a request").clone()
    }
}

/// The body of a request, with its key.
fn request_of(stream: &TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let (mut length, mut key) = (0, Value::Null);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        match line.trim_end().to_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().expect("a number"),
            Some(("authorization", value)) => key = value.into(),
            Some(_) => {}
            None if line.trim().is_empty() => break,
            None => assert!(line.starts_with("POST /v1/completions "), "{line}"),
        }
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).expect("a body");
    let mut body: Value = serde_json::from_slice(&bytes).expect("JSON");
    body["key"] = key;
    body
}

fn answer(stream: &mut TcpStream, does: Behaviour) -> std::io::Result<()> {
    if let Behaviour::Refuses = does {
        let body = r#"{"error": {"message": "the engine is dead", "type": "InternalServerError", "code": 500}}"#;
        return write!(stream, "HTTP/1.1 500 Oh\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    }
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
    let mut draw = |ids: &[u32]| -> std::io::Result<()> {
        let logprobs = json!({
            "tokens": ids.iter().map(|id| format!("token_id:{id}")).collect::<Vec<_>>(),
            "token_logprobs": ids.iter().map(|_| -0.5).collect::<Vec<_>>(),
            "top_logprobs": ids.iter().map(|id| json!({format!("token_id:{id}"): -0.5})).collect::<Vec<_>>(),
        });
        let event = json!({"choices": [{"index": 0, "text": "?", "token_ids": ids, "logprobs": logprobs}]});
        write!(stream, "data: {event}\n\n")?;
        stream.flush()
    };
    match does {
        Behaviour::Refuses => {}
        // Several in one event, as a busy decoder sends them.
        Behaviour::Draws(ids) => {
            for ids in ids.chunks(2) {
                draw(ids)?;
            }
            write!(stream, "data: {{\"choices\": [], \"usage\": {{}}}}\n\ndata: [DONE]\n\n")?;
        }
        Behaviour::BreaksOff(ids) => draw(&ids)?,
        Behaviour::Fails(id) => {
            draw(&[id])?;
            write!(stream, "data: {{\"error\": {{\"message\": \"out of blocks\"}}}}\n\n")?;
        }
        Behaviour::NeverEnds(id) => loop {
            draw(&[id])?;
            std::thread::sleep(Duration::from_millis(5));
        },
        Behaviour::TellsNoIds => write!(stream, "data: {{\"choices\": [{{\"text\": \"lyon\"}}]}}\n\n")?,
    }
    Ok(())
}

/// The text of token ids after a prompt.
fn text_of(server: &Server, ids: &[u32]) -> String {
    let echo = json!({"prompt": ids, "echo": true, "max_tokens": 0});
    let told = post(&server.address, "/v1/completions", &echo).json();
    told["choices"][0]["text"].as_str().expect("a text").to_owned()
}

fn asked(method: &str, tokens: usize) -> Value {
    let mut request = body("hop2-0", tokens);
    request["tributary"] = json!({"method": method});
    request
}

/// The words of an error.
fn error(response: &Response) -> (u16, Value, String) {
    let error = &response.json()["error"];
    (response.status, error["code"].clone(), error["message"].as_str().expect("words").to_owned())
}

#[test]
fn the_first_token_is_drawn_here_and_the_others_there() {
    let decoder = Decoder::start();
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    std::fs::write(&key, "secret\n").expect("written");
    let key = key.to_str().expect("text");
    let server = Server::start(&["--world-size", "2", "--decode-at", &decoder.url, "--decode-key-file", key]);
    let ids = [101, 192, 304];
    for (method, salted) in [("full", false), ("infoflow", true), ("relay:reorder", true)] {
        decoder.does(Behaviour::Draws(ids.to_vec()));
        let first = server.answer(&asked(method, 1));
        let answer = server.chat(&asked(method, 4)).json();
        let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
        assert_eq!(text, format!("{first} {}", text_of(&server, &ids).trim_start()), "{method}");
        assert_eq!(answer["usage"]["completion_tokens"], 4, "{method}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{method}");
        let body = decoder.asked();
        assert_eq!((&body["max_tokens"], &body["return_token_ids"]), (&json!(3), &json!(true)), "{method}");
        assert_eq!(body["cache_salt"].is_string(), salted, "{method}");
        assert_eq!(body["key"], "bearer secret");
        let id = body["kv_transfer_params"]["tributary"]["id"].as_str().expect("an id");
        assert!(id.starts_with("kv-"), "{id}");
        let prompt = body["prompt"].as_array().expect("ids");
        assert_eq!(prompt.len() as u64, answer["usage"]["prompt_tokens"].as_u64().expect("tokens") + 1);
        // The answer has ended, and nothing is held any more.
        server.becomes("tributary_held_sequences", 0.0);
        assert_eq!(server.get(&format!("/v1/prefill/{id}")).status, 404, "{method}");
        let (streamed, _) = streamed(server.stream(&asked(method, 4)));
        assert_eq!(streamed, text, "{method}");
    }
    assert_eq!(server.metric("tributary_decoder_requests_total{outcome=\"answered\"}"), 6.0);
    let mut request = asked("full", 3);
    request["logprobs"] = true.into();
    request["top_logprobs"] = 1.into();
    let told = server.chat(&request).json();
    let told = told["choices"][0]["logprobs"]["content"].as_array().expect("tokens");
    assert_eq!(
        (told.len(), &told[2]["logprob"], &told[2]["top_logprobs"][0]["logprob"]),
        (4, &json!(-0.5), &json!(-0.5))
    );
    let refused = error(&server.chat(&asked("ape", 4)));
    assert!(refused.0 == 400 && refused.2.contains("cannot be handed over"), "{refused:?}");
    server.ends_well();
}

#[test]
fn keys_and_values_can_be_read_while_the_answer_goes_on() {
    let decoder = Decoder::start();
    let server = Server::start(&["--decode-at", &decoder.url]);
    decoder.does(Behaviour::NeverEnds(101));
    let mut stream = server.stream(&asked("infoflow", 1000));
    while decoder.asked.lock().expect("unpoisoned").is_empty() {
        stream.event().expect("the first token");
    }
    let id = decoder.asked()["kv_transfer_params"]["tributary"]["id"].as_str().expect("an id").to_owned();
    let prefill = server.get(&format!("/v1/prefill/{id}")).json();
    assert_eq!(prefill["status"], "done");
    let line = format!("GET /v1/kv/{id}/{}", prefill["layers"].as_u64().expect("layers") - 1);
    let (status, bytes) = send(&server.address, &line, None).expect("it answers").bytes();
    let (rows, hash) = bytes.split_at(bytes.len() - 32);
    assert_eq!((status, blake3::hash(rows).as_bytes().as_slice()), (200, hash));
    // Who leaves ends it there, and releases it here.
    drop(stream);
    server.becomes("tributary_held_sequences", 0.0);
    // So does a stop text, whose answer is whole.
    let word = text_of(&server, &[101]);
    let mut request = asked("infoflow", 1000);
    request["stop"] = json!([format!("{} {}", word.trim(), word.trim())]);
    let answer = server.chat(&request).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    server.becomes("tributary_held_sequences", 0.0);
    server.ends_well();
}

#[test]
fn failures_of_the_decoder_are_its_own() {
    let decoder = Decoder::start();
    let server = Server::start(&["--decode-at", &decoder.url]);
    for (behaviour, words) in [
        (Behaviour::Refuses, "the engine is dead"),
        (Behaviour::BreaksOff(vec![101]), "broke off"),
        (Behaviour::Fails(101), "out of blocks"),
        (Behaviour::TellsNoIds, "return_token_ids"),
    ] {
        decoder.does(behaviour);
        let (status, code, message) = error(&server.chat(&asked("full", 4)));
        assert_eq!((status, &code), (502, &json!("decoder_failed")), "{message}");
        assert!(message.contains(words) && message.contains(&decoder.url[..20]), "{message}");
        let events = server.stream(&asked("full", 4)).events();
        let last: Value = serde_json::from_str(events.last().expect("an event")).expect("JSON");
        assert_eq!(last["error"]["code"], "decoder_failed", "{last}");
    }
    server.becomes("tributary_held_sequences", 0.0);
    assert_eq!(server.metric("tributary_decoder_requests_total{outcome=\"failed\"}"), 8.0);
    // A token of this side alone needs no decoder.
    assert_eq!(server.chat(&asked("full", 1)).status, 200);
    server.ends_well();
    let alone = Server::start(&["--decode-at", "http://127.0.0.1:9"]);
    let (status, _, message) = error(&alone.chat(&asked("full", 4)));
    assert!(status == 502 && message.contains("refused"), "{message}");
    alone.ends_well();
}

#[test]
fn a_decoder_with_a_key_of_its_own_reads_and_releases_what_a_client_asked_for() {
    let decoder = Decoder::start();
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "client\ndecoder\n").expect("written");
    std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let keys = keys.to_str().expect("text");
    let server = Server::start(&["--decode-at", &decoder.url, "--api-key-file", keys, "--metrics-public"]);
    let ask = |line: &str, key: &str, body: Option<&str>| {
        send_with(&server.address, line, &format!("authorization: Bearer {key}\r\n"), body).expect("it answers")
    };
    decoder.does(Behaviour::NeverEnds(101));
    let mut request = asked("infoflow", 1000);
    request["stream"] = true.into();
    let mut stream = ask("POST /v1/chat/completions", "client", Some(&request.to_string()));
    while decoder.asked.lock().expect("unpoisoned").is_empty() {
        stream.event().expect("the first token");
    }
    let id = decoder.asked()["kv_transfer_params"]["tributary"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(ask(&format!("GET /v1/kv/{id}/0"), "decoder", None).bytes().0, 200);
    assert_eq!(ask(&format!("DELETE /v1/prefill/{id}"), "decoder", None).status, 204);
    // The decoder has what it needs: memory is free here while the answer goes on there.
    server.becomes("tributary_held_sequences", 0.0);
    for _ in 0..5 {
        stream.event().expect("another token");
    }
    drop(stream);
    server.becomes("tributary_decoder_requests_total{outcome=\"cancelled\"}", 1.0);
    server.ends_well();
}
