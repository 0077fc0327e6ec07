//! A server of OpenAI's interface that answers nothing true, with delays and failures that a test
//! chooses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tributary_load::{OPTIONS, Options};

/// Reply to a request.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    /// Milliseconds before the first text.
    pub first_ms: u64,
    /// Milliseconds before each later text.
    pub gaps_ms: Vec<u64>,
    /// Queueing time that the server reports.
    pub queue_ms: Option<f64>,
    /// Number of texts after which an error comes.
    pub error_after: Option<usize>,
    /// Number of texts after which the connection ends.
    pub cut_after: Option<usize>,
}

impl Default for Reply {
    fn default() -> Self {
        Self { status: 200, first_ms: 0, gaps_ms: Vec::new(), queue_ms: None, error_after: None, cut_after: None }
    }
}

/// A server, until the process ends.
pub struct Fake {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Value>>>,
    spent: Arc<Mutex<Vec<Vec<f64>>>>,
}

/// State that all connections share.
struct Shared {
    /// Requests that stream so far: the number of each chooses its reply.
    streamed: AtomicUsize,
    reply: Box<dyn Fn(usize) -> Reply + Send + Sync>,
    bodies: Arc<Mutex<Vec<Value>>>,
    spent: Arc<Mutex<Vec<Vec<f64>>>>,
    /// Held while a request is answered, by a server that answers one at a time.
    turn: Option<Mutex<()>>,
}

impl Fake {
    /// A server that answers all requests side by side; a reply belongs to the number of a request
    /// that streams.
    pub fn start(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::with_turn(reply, None)
    }

    /// One that answers them one after another.
    pub fn start_serial(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::with_turn(reply, Some(Mutex::new(())))
    }

    fn with_turn(reply: impl Fn(usize) -> Reply + Send + Sync + 'static, turn: Option<Mutex<()>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (address, bodies, spent) = (listener.local_addr().expect("it is bound"), Arc::default(), Arc::default());
        let (reply, streamed) = (Box::new(reply), AtomicUsize::new(0));
        let shared = Shared { streamed, reply, bodies: Arc::clone(&bodies), spent: Arc::clone(&spent), turn };
        let shared = Arc::new(shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                // A client that has left is no failure of the server.
                thread::spawn(move || _ = answer(stream, &shared));
            }
        });
        Self { address, bodies, spent }
    }

    /// Milliseconds from when a request was read to each of its texts, of every answered request:
    /// the server's real times, which on a busy machine exceed the planned ones.
    pub fn spent(&self) -> Vec<Vec<f64>> {
        self.spent.lock().expect("no thread fails").clone()
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Completions that were asked for.
    pub fn asked(&self) -> usize {
        self.bodies.lock().expect("no thread fails").len()
    }

    /// Bodies of the requests, in order.
    pub fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().expect("no thread fails").clone()
    }
}

fn answer(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length, mut path) = (String::new(), 0, String::new());
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().expect("a length")
            }
            None if line.trim_end().is_empty() => break,
            None => path = line.split(' ').nth(1).expect("a path").to_owned(),
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if path == "/v1/models" {
        return whole(stream, 200, &json!({"data": [{"id": "fake"}]}));
    }
    assert_eq!(path, "/v1/chat/completions");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    shared.bodies.lock().expect("no thread fails").push(body.clone());
    if body["stream"] != true {
        return whole(stream, 200, &json!({"usage": {"prompt_tokens": 3 + 2 * words(&body)}}));
    }
    let reply = (shared.reply)(shared.streamed.fetch_add(1, Ordering::Relaxed));
    if reply.status != 200 {
        return whole(stream, reply.status, &json!({"error": {"message": "no"}}));
    }
    let _turn = shared.turn.as_ref().map(|turn| turn.lock().expect("no thread fails"));
    let spent = streamed(stream, &reply)?;
    shared.spent.lock().expect("no thread fails").push(spent);
    Ok(())
}

/// Words of all texts of a request.
fn words(body: &Value) -> usize {
    let documents = body["documents"].as_array().cloned().unwrap_or_default();
    let texts = documents.iter().chain(std::iter::once(&body["messages"][0]["content"]));
    texts.map(|text| text.as_str().expect("a text").split_whitespace().count()).sum()
}

fn whole(mut stream: TcpStream, status: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(stream, "HTTP/1.1 {status} Some\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Sends events as chunks, each torn in two; gives the milliseconds to each text.
fn streamed(mut stream: TcpStream, reply: &Reply) -> std::io::Result<Vec<f64>> {
    let (began, mut spent) = (Instant::now(), Vec::new());
    stream.set_nodelay(true)?;
    write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n")?;
    let part = |delta: Value, finish: Value| json!({"choices": [{"delta": delta, "finish_reason": finish}]});
    event(&mut stream, &part(json!({"role": "assistant", "content": ""}), Value::Null).to_string())?;
    for (index, pause) in std::iter::once(&reply.first_ms).chain(&reply.gaps_ms).enumerate() {
        if reply.cut_after == Some(index) {
            return Ok(spent);
        }
        if reply.error_after == Some(index) {
            event(&mut stream, &json!({"error": {"message": "no"}}).to_string())?;
            return Ok(spent);
        }
        thread::sleep(Duration::from_millis(*pause));
        spent.push(began.elapsed().as_secs_f64() * 1e3);
        event(&mut stream, &part(json!({"content": "word "}), Value::Null).to_string())?;
    }
    let mut last = part(json!({}), "length".into());
    if let Some(queue_ms) = reply.queue_ms {
        last["metrics"] = json!({"phases_ms": {"queue": queue_ms}});
    }
    event(&mut stream, &last.to_string())?;
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1 + reply.gaps_ms.len()}});
    event(&mut stream, &usage.to_string())?;
    event(&mut stream, "[DONE]")?;
    write!(stream, "0\r\n\r\n")?;
    Ok(spent)
}

fn event(stream: &mut TcpStream, data: &str) -> std::io::Result<()> {
    let text = format!(": a comment\n\ndata: {data}\n\n");
    let (left, right) = text.split_at(text.len() / 2);
    for half in [left, right] {
        write!(stream, "{:x}\r\n{half}\r\n", half.len())?;
    }
    Ok(())
}

/// Options of small requests to a server, and more, as `NAME=VALUE` or a switch.
pub fn options(fake: &Fake, words: &[&str]) -> Options {
    let url = format!("url={}", fake.url());
    let given = |name: &str| {
        let declared = OPTIONS.iter().find(|option| option.name == name).expect("it is declared");
        let typed = words.iter().chain([&url.as_str()]).find_map(|word| match word.split_once('=') {
            Some((left, value)) => (left == name).then(|| value.to_owned()),
            None => (*word == name).then(String::new),
        });
        typed.or(declared.default.map(str::to_owned))
    };
    Options::read(&given).expect("options")
}
