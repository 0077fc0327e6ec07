//! The part of HTTP/1.1 that a client needs: a request with a body, and a response that can be read
//! as it comes, before a deadline. There is no TLS. Each request has its own connection, as
//! independent clients have.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The longest line of a head, in bytes, and the most lines.
const HEAD_LINE_BYTES: u64 = 16 << 10;
const HEAD_LINES: usize = 128;

/// The most bytes of a body that is read as a whole.
const WHOLE_BYTES: usize = 16 << 20;

/// Address of a server, and the key to show it.
#[derive(Debug, Clone)]
pub struct Address {
    /// As it was given.
    pub url: String,
    host: String,
    path: String,
    addresses: Vec<SocketAddr>,
    authorization: String,
}

/// Why there is no response, or no more of it.
#[derive(Debug)]
pub enum Failure {
    /// The connection is not accepted.
    Connect(io::Error),
    /// The deadline has passed.
    Timeout,
    /// The connection ended before the response.
    Cut(io::Error),
    /// The answer is no HTTP.
    Malformed(&'static str),
}

/// A response whose body is read as it comes.
pub struct Response {
    /// Its status.
    pub status: u16,
    reader: BufReader<Timed>,
    framing: Framing,
}

/// Framing of a body, which shows its end.
enum Framing {
    /// This number of bytes is left.
    Bytes(u64),
    /// Chunks, with this number of bytes left in the current one.
    Chunks(u64),
    /// It ends with the connection.
    Connection,
    /// It has ended.
    Ended,
}

/// A connection that is read before a deadline.
struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

impl Address {
    /// Finds the server of a URL such as `http://127.0.0.1:8080`, with or without `/v1` after it.
    ///
    /// # Errors
    /// Returns an error if the text is no URL, if its protocol is not http, if the name does not
    /// resolve, or if the key does not fit into a header.
    pub fn find(url: &str, key: Option<&str>) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let wrong = |what: &str| Error::usage(format!("--url {url}: {what}"));
        match scheme {
            "http" => {}
            "https" => {
                return Err(wrong("there is no TLS here; let a proxy on this machine speak it, and name the proxy"));
            }
            _ => return Err(wrong("it must begin with http://")),
        }
        let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path.trim_matches('/')));
        let path = path.strip_suffix("v1").map_or(path, |before| before.trim_end_matches('/'));
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('@') || !plain(rest) {
            return Err(wrong("it must be like http://HOST:PORT"));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let with_port = if has_port { host.to_owned() } else { format!("{host}:80") };
        let addresses: Vec<_> = with_port.to_socket_addrs().map_err(|error| wrong(&error.to_string()))?.collect();
        if key.is_some_and(|key| key.is_empty() || !plain(key)) {
            return Err(Error::usage("--api-key-file: a key is one word of ASCII letters, digits and signs"));
        }
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        let authorization = key.map_or_else(String::new, |key| format!("authorization: Bearer {key}\r\n"));
        Ok(Self { url: url.to_owned(), host: host.to_owned(), path, addresses, authorization })
    }

    /// Sends a request, a POST if it has a body, and reads the head of the response.
    ///
    /// # Errors
    /// Returns an error if a step fails or the deadline passes.
    pub fn ask(&self, path: &str, body: Option<&str>, deadline: Instant) -> std::result::Result<Response, Failure> {
        let stream = self.connect(deadline)?;
        let method = if body.is_some() { "POST" } else { "GET" };
        let Self { host, path: prefix, authorization, .. } = self;
        let body = body.unwrap_or_default();
        let length = body.len();
        let message = format!(
            "{method} {prefix}{path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: tributary-load\r\nconnection: close\r\n\
             accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n{authorization}\
             content-length: {length}\r\n\r\n{body}"
        );
        let sent = (&stream).write_all(message.as_bytes());
        let mut reader = BufReader::new(Timed { stream, deadline });
        // A server that has refused the request may have closed before it has read all: then it has
        // said why.
        match (head(&mut reader), sent) {
            (Ok((status, framing)), _) => Ok(Response { status, reader, framing }),
            (Err(Failure::Cut(_)), Err(error)) | (Err(_), Err(error)) => Err(failure(error)),
            (Err(failure), Ok(())) => Err(failure),
        }
    }

    fn connect(&self, deadline: Instant) -> std::result::Result<TcpStream, Failure> {
        let mut last = Failure::Connect(ErrorKind::AddrNotAvailable.into());
        for address in &self.addresses {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::Timeout);
            }
            match TcpStream::connect_timeout(address, left) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(Failure::Connect)?;
                    stream.set_write_timeout(Some(left.max(Duration::from_millis(1)))).map_err(Failure::Connect)?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => last = Failure::Timeout,
                Err(error) => last = Failure::Connect(error),
            }
        }
        Err(last)
    }
}

impl Response {
    /// The next bytes of the body, as they come; none at its end.
    ///
    /// # Errors
    /// Returns an error if the body does not end as its head says, or if the deadline passes.
    pub fn piece(&mut self) -> std::result::Result<Option<Vec<u8>>, Failure> {
        if matches!(self.framing, Framing::Chunks(0)) {
            self.chunk_begins()?;
        }
        let most = match self.framing {
            Framing::Ended | Framing::Bytes(0) => return Ok(None),
            Framing::Bytes(left) | Framing::Chunks(left) => left,
            Framing::Connection => u64::MAX,
        };
        let there = self.reader.fill_buf().map_err(failure)?;
        let count = there.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let piece = there[..count].to_vec();
        self.reader.consume(count);
        match (&mut self.framing, count as u64) {
            (Framing::Connection, 0) => return Ok(None),
            (_, 0) => return Err(Failure::Cut(ErrorKind::UnexpectedEof.into())),
            (Framing::Bytes(left), count) => *left -= count,
            (Framing::Chunks(left), count) => {
                *left -= count;
                if *left == 0 {
                    line(&mut self.reader)?;
                }
            }
            (Framing::Connection | Framing::Ended, _) => {}
        }
        Ok(Some(piece))
    }

    /// The whole body as text.
    ///
    /// # Errors
    /// Fails as [`piece`](Self::piece) does, and if the body has more bytes than an answer may
    /// have.
    pub fn whole(&mut self) -> std::result::Result<String, Failure> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece()? {
            bytes.extend(piece);
            if bytes.len() > WHOLE_BYTES {
                return Err(Failure::Malformed("a body without end"));
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads the length of a chunk, and the trailer after the last one.
    fn chunk_begins(&mut self) -> std::result::Result<(), Failure> {
        let text = line(&mut self.reader)?;
        let digits = text.split(';').next().unwrap_or_default().trim();
        let length = u64::from_str_radix(digits, 16).map_err(|_| Failure::Malformed("a chunk without length"))?;
        self.framing = Framing::Chunks(length);
        if length == 0 {
            let mut lines = 0;
            while !line(&mut self.reader)?.is_empty() {
                lines += 1;
                if lines > HEAD_LINES {
                    return Err(Failure::Malformed("a trailer without end"));
                }
            }
            self.framing = Framing::Ended;
        }
        Ok(())
    }
}

/// Status and framing, from the head of a response. Interim responses are passed over.
fn head(reader: &mut BufReader<Timed>) -> std::result::Result<(u16, Framing), Failure> {
    loop {
        let first = line(reader)?;
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse::<u16>().ok());
        let status = status.ok_or(Failure::Malformed("a response that is no HTTP"))?;
        let mut framing = Framing::Connection;
        let mut lines = 0;
        loop {
            let header = line(reader)?;
            lines += 1;
            let Some((name, value)) = header.split_once(':') else { break };
            if lines > HEAD_LINES {
                return Err(Failure::Malformed("a head without end"));
            }
            let value = value.trim();
            if name.eq_ignore_ascii_case("transfer-encoding") && value.to_ascii_lowercase().ends_with("chunked") {
                framing = Framing::Chunks(0);
            } else if name.eq_ignore_ascii_case("content-length") && !matches!(framing, Framing::Chunks(_)) {
                framing = Framing::Bytes(value.parse().map_err(|_| Failure::Malformed("a body of no length"))?);
            }
        }
        match status {
            100..200 => {}
            204 | 304 => return Ok((status, Framing::Ended)),
            _ => return Ok((status, framing)),
        }
    }
}

/// The next line without its end.
fn line(reader: &mut BufReader<Timed>) -> std::result::Result<String, Failure> {
    let mut bytes = Vec::new();
    reader.by_ref().take(HEAD_LINE_BYTES).read_until(b'\n', &mut bytes).map_err(failure)?;
    if !bytes.ends_with(b"\n") {
        let is_long = bytes.len() as u64 == HEAD_LINE_BYTES;
        let cut = Failure::Cut(ErrorKind::UnexpectedEof.into());
        return Err(if is_long { Failure::Malformed("a line without end") } else { cut });
    }
    Ok(String::from_utf8_lossy(bytes.trim_ascii_end()).into_owned())
}

/// Meaning of a failure of reading or writing.
fn failure(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Failure::Timeout,
        _ => Failure::Cut(error),
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Connect(cause) => write!(f, "cannot connect: {cause}"),
            Failure::Timeout => f.write_str("no answer in time"),
            Failure::Cut(cause) => write!(f, "the connection ended too early: {cause}"),
            Failure::Malformed(what) => f.write_str(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let of = |url: &str| Address::find(url, None).map(|found| (found.host, found.path)).map_err(|e| e.to_string());
        let owned = |host: &str, path: &str| Ok((host.to_owned(), path.to_owned()));
        assert_eq!(of("http://127.0.0.1:8080"), owned("127.0.0.1:8080", ""));
        assert_eq!(of("http://127.0.0.1:8080/v1/"), owned("127.0.0.1:8080", ""));
        assert_eq!(of("http://[::1]:81/openai/v1"), owned("[::1]:81", "/openai"));
        assert_eq!(of("http://127.0.0.1/a"), owned("127.0.0.1", "/a"));
        let refused = [
            ("https://127.0.0.1", "proxy"),
            ("127.0.0.1:80", "http://"),
            ("http://", "HOST:PORT"),
            ("http://a b", "HOST:PORT"),
            ("http://me@host", "HOST:PORT"),
            ("http://127.0.0.1:80\r\nx: y", "HOST:PORT"),
        ];
        for (url, word) in refused {
            let error = of(url).expect_err(url);
            assert!(error.contains(word), "{error}");
        }
        for key in ["", "two words", "a\r\nb"] {
            assert!(Address::find("http://127.0.0.1", Some(key)).is_err(), "{key:?}");
        }
    }
}
