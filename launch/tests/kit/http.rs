//! A client of a service, down to the bytes: no library is between a test and the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// The longest that a test waits for a byte.
const PATIENCE: Duration = Duration::from_secs(60);

/// Response of a service.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: String,
}

/// A response whose body comes in pieces.
pub struct Stream {
    /// Its status.
    pub status: u16,
    headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    /// The data of the events that have been read.
    seen: Vec<String>,
}

impl Response {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Asks for a page.
pub fn get(address: &str, path: &str) -> Response {
    send(address, &format!("GET {path}"), None).expect("the service answers").whole()
}

/// Posts an object and waits for the whole response.
pub fn post(address: &str, path: &str, body: &Value) -> Response {
    post_text(address, path, &body.to_string())
}

/// Posts a body that need not be an object.
pub fn post_text(address: &str, path: &str, body: &str) -> Response {
    send(address, &format!("POST {path}"), Some(body)).expect("the service answers").whole()
}

/// Sends a request and reads nothing.
pub fn open(address: &str, path: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let text = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json");
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{text}", text.len()).expect("written");
    stream
}

/// Sends a request; none where the connection is refused.
pub fn send(address: &str, line: &str, body: Option<&str>) -> Option<Stream> {
    send_as(address, address, line, body)
}

/// The same to a service that is called by the name `host`.
pub fn send_as(address: &str, host: &str, line: &str, body: Option<&str>) -> Option<Stream> {
    exchange(address, &format!("{line} HTTP/1.1\r\nhost: {host}\r\n"), body)
}

/// The same with further headers, each with its line's end.
pub fn send_with(address: &str, line: &str, headers: &str, body: Option<&str>) -> Option<Stream> {
    exchange(address, &format!("{line} HTTP/1.1\r\nhost: {address}\r\n{headers}"), body)
}

fn exchange(address: &str, head: &str, body: Option<&str>) -> Option<Stream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let mut head = format!("{head}connection: close\r\n");
    if let Some(body) = body {
        head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    }
    write!(stream, "{head}\r\n{}", body.unwrap_or_default()).ok()?;
    let mut reader = BufReader::new(stream);
    let first = line_of(&mut reader)?;
    let status = first.split(' ').nth(1)?.parse().ok()?;
    let mut headers = Vec::new();
    loop {
        let line = line_of(&mut reader)?;
        let Some((name, value)) = line.split_once(':') else {
            return Some(Stream { status, headers, reader, seen: Vec::new() });
        };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
}

fn line_of(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let length = reader.read_line(&mut line).ok()?;
    (length > 0).then(|| line.trim_end().to_owned())
}

impl Stream {
    /// The next event's data; none after the last. Comments are skipped.
    pub fn event(&mut self) -> Option<String> {
        loop {
            let line = line_of(&mut self.reader)?;
            // Lines between are lengths of chunks.
            if let Some(data) = line.strip_prefix("data: ") {
                self.seen.push(data.to_owned());
                return Some(data.to_owned());
            }
        }
    }

    /// The whole body; none if it ends before its time.
    pub fn rest(mut self) -> Option<String> {
        let length = self.headers.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// The status, and the whole body as bytes.
    pub fn bytes(mut self) -> (u16, Vec<u8>) {
        let mut bytes = Vec::new();
        self.reader.read_to_end(&mut bytes).expect("readable");
        (self.status, bytes)
    }

    /// All events, those that have been read already among them.
    pub fn events(mut self) -> Vec<String> {
        while self.event().is_some() {}
        self.seen
    }

    pub fn whole(mut self) -> Response {
        let (mut bytes, chunked) = (Vec::new(), self.headers.iter().any(|(name, _)| name == "transfer-encoding"));
        assert!(!chunked, "a whole body has its length");
        self.reader.read_to_end(&mut bytes).expect("readable");
        let body = String::from_utf8(bytes).expect("text");
        Response { status: self.status, headers: self.headers, body }
    }
}
