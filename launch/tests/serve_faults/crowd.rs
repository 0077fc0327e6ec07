//! Concurrent clients that know the right answer.

use std::collections::BTreeSet;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::kit::http::send;
use super::kit::server::{Server, body, picture_url};

/// The requests that are asked. The model was trained for their answers: no token of them is a near
/// tie.
const REQUESTS: [&str; 6] = ["hop2-0", "hop2-1", "hop2_back-0", "vt2-0", "vt3-1", "vt3-5"];

/// Tokens of an answer.
const TOKENS: usize = 6;

/// Requests, and the right answer of each.
#[derive(Debug, Clone)]
pub struct Right(Vec<(Value, String)>);

/// Result of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// The whole answer.
    Whole,
    /// An explicit error: a status, or a stream's last event.
    Error(u16),
    /// A connection that was refused, or ended in the middle.
    Cut,
}

/// Results of all clients, and the time of the last one.
#[derive(Debug)]
pub struct Ended {
    /// In the order in which they had asked.
    pub got: Vec<Got>,
    /// When the last one had it.
    pub at: Instant,
}

impl Ended {
    /// Number of clients with this result.
    pub fn count(&self, is: impl Fn(Got) -> bool) -> usize {
        self.got.iter().filter(|got| is(**got)).count()
    }

    /// Numbers of whole answers, and of errors or none.
    pub fn row(&self) -> String {
        let whole = self.count(|got| got == Got::Whole);
        let cut = self.count(|got| got == Got::Cut);
        format!("{whole} whole, {} errors, {cut} cut", self.got.len() - whole - cut)
    }
}

/// Clients on their way.
pub struct Crowd(Vec<JoinHandle<(Got, Instant)>>);

impl Right {
    /// The answers of a quiet service.
    pub fn of(server: &Server) -> Self {
        Self::of_bodies(server, REQUESTS.map(|name| body(name, TOKENS)).into())
    }

    /// The same for requests with pictures, to a model that reads them. Its first token follows
    /// from the prefill alone, whatever else is decoded.
    pub fn of_pictures(server: &Server) -> Self {
        let ask = |names: [&str; 2]| {
            let documents: Vec<Value> = names.map(|name| json!({"image": picture_url(name)})).into();
            json!({
                "model": "demo",
                "messages": [{"role": "user", "content": "which is red?"}],
                "documents": documents,
                "max_tokens": 1,
            })
        };
        Self::of_bodies(server, vec![ask(["a.png", "c.png"]), ask(["b.png", "d.png"]), ask(["e.png", "f.png"])])
    }

    fn of_bodies(server: &Server, bodies: Vec<Value>) -> Self {
        let answered = |body: Value| {
            let answer = server.answer(&body);
            (body, answer)
        };
        Self(bodies.into_iter().map(answered).collect())
    }

    /// Starts `clients` clients, every other one with a stream.
    pub fn asked(&self, address: &str, clients: usize) -> Crowd {
        let ask = |number: usize| {
            let (address, right) = (address.to_owned(), self.clone());
            spawn(move || (ask_once(&right, &address, number), Instant::now()))
        };
        Crowd((0..clients).map(ask).collect())
    }
}

impl Crowd {
    /// Waits until each has its result. A wrong answer fails the test.
    pub fn end(self) -> Ended {
        let ends: Vec<_> = self.0.into_iter().map(|client| client.join().expect("no wrong answer")).collect();
        let at = ends.iter().map(|(_, at)| *at).max().expect("a client");
        Ended { got: ends.into_iter().map(|(got, _)| got).collect(), at }
    }
}

/// Asks the request of this number, every other one as a stream. A wrong answer is a panic.
pub fn ask_once(right: &Right, address: &str, number: usize) -> Got {
    let Right(requests) = right;
    let (body, answer) = &requests[number % requests.len()];
    ask(address, body, answer, number % 2 == 1)
}

/// Asks once.
fn ask(address: &str, body: &Value, right: &str, streams: bool) -> Got {
    let mut request = body.clone();
    request["stream"] = streams.into();
    let Some(mut stream) = send(address, "POST /v1/chat/completions", Some(&request.to_string())) else {
        return Got::Cut;
    };
    let status = stream.status;
    if !streams || status != 200 {
        let Some(text) = stream.rest() else { return Got::Cut };
        let object: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        if status == 200 {
            assert_eq!(object["choices"][0]["message"]["content"], right);
            return Got::Whole;
        }
        return is_error(&object, status);
    }
    let mut text = String::new();
    loop {
        let Some(event) = stream.event() else { return Got::Cut };
        if event == "[DONE]" {
            assert_eq!(text, right);
            return Got::Whole;
        }
        let object: Value = serde_json::from_str(&event).unwrap_or_else(|error| panic!("{error}: {event}"));
        if object.get("error").is_some() {
            assert_eq!(stream.event(), None, "no event follows an error");
            return is_error(&object, status);
        }
        text += object["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        assert!(right.starts_with(&text), "`{text}` of `{right}`");
    }
}

fn is_error(object: &Value, status: u16) -> Got {
    let error = &object["error"];
    let named = error["type"].is_string() && error["message"].as_str().is_some_and(|message| !message.is_empty());
    assert!(named, "an error without its form: {object}");
    Got::Error(status)
}

/// Waits until requests run and nothing moves any more: a rank is held somewhere.
pub fn stalls(server: &Server) {
    let seen = || {
        let text = server.get("/metrics").body;
        let moves = ["tributary_requests_", "tributary_collective_bytes_total", "tributary_generated_tokens_total"];
        let lines = text.lines().filter(|line| moves.iter().any(|name| line.starts_with(name)));
        // They come in no order.
        lines.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let began = Instant::now();
    let (mut last, mut since) = (seen(), Instant::now());
    loop {
        assert!(began.elapsed() < Duration::from_secs(60), "no rank is ever held");
        std::thread::sleep(Duration::from_millis(50));
        let now = seen();
        let runs = now.iter().any(|line| {
            let running = line.strip_prefix("tributary_requests_running ");
            running.is_some_and(|number| number != "0")
        });
        if now != last || !runs {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > Duration::from_millis(500) {
            return;
        }
    }
}
