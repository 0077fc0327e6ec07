//! The server that decodes what is prefilled here: vLLM, by its `/v1/completions`, over HTTP
//! without TLS. Its tokens come as ids.

use std::collections::VecDeque;
use std::fmt;

use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tributary_planner::RequestSettings;
use tributary_protocol::{DrawnToken, Logprobs};

use crate::body::short;
use crate::error::ApiError;

/// Bytes of one event of a stream at most, and of an error's body.
const EVENT_BYTES: usize = 1 << 20;

/// A server that decodes.
#[derive(Clone, PartialEq, Eq)]
pub struct Decoder {
    /// Host and port.
    host: String,
    /// Path before `/v1`.
    path: String,
    /// The key that it wants, if it wants one.
    key: Option<String>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.host, self.path)
    }
}

/// A prompt that is held, and how its answer goes on.
pub struct Continuation<'a> {
    /// Ids of its tokens in the order of their positions, and of the first token after them.
    pub ids: &'a [u32],
    /// Id of its keys and values.
    pub id: &'a str,
    /// The salt of the decoder's prefix cache.
    pub cache_salt: Option<&'a str>,
    /// How further tokens are drawn, the first included.
    pub settings: &'a RequestSettings,
}

/// Tokens on their way.
pub struct Tokens {
    body: Incoming,
    buffer: Vec<u8>,
    ready: VecDeque<DrawnToken>,
    is_over: bool,
    connection: JoinHandle<()>,
}

impl Decoder {
    /// A server by its URL, such as `http://127.0.0.1:8000`, with or without `/v1` after it.
    ///
    /// # Errors
    /// Returns a line if the text is no such URL, or if the key does not fit into a header.
    pub fn new(url: &str, key: Option<&str>) -> Result<Self, String> {
        let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err("there is no TLS here: name a proxy on this machine that speaks it".into());
            }
            _ => return Err("it must begin with http://".into()),
        };
        let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path.trim_matches('/')));
        let path = path.strip_suffix("v1").unwrap_or(path).trim_end_matches('/');
        if !is_plain(host) || host.contains('@') || !(path.is_empty() || is_plain(path)) {
            return Err("it must be like http://HOST:PORT".into());
        }
        if key.is_some_and(|key| !is_plain(key)) {
            return Err("its key must be one word of ASCII letters, digits and signs".into());
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:80") };
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Self { host, path, key: key.map(str::to_owned) })
    }

    /// Asks for the tokens after a prompt and its first token.
    ///
    /// # Errors
    /// Returns 502 if the server is gone or refuses, with its own words.
    pub async fn decode(&self, wanted: &Continuation<'_>) -> Result<Tokens, ApiError> {
        let lost = |error: &dyn fmt::Display| self.failed(&error.to_string());
        let stream = TcpStream::connect(&self.host).await.map_err(|error| lost(&error))?;
        stream.set_nodelay(true).map_err(|error| lost(&error))?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| lost(&error))?;
        let connection = tokio::spawn(async move {
            // Its failure is the failure of the body that it carries.
            let _ = connection.await;
        });
        let mut request = Request::post(format!("{}/v1/completions", self.path))
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(Bytes::from(body(wanted).to_string())));
        let response = sender.send_request(request.map_err(|error| lost(&error))?).await;
        let response = response.map_err(|error| lost(&error))?;
        let (status, body) = (response.status(), response.into_body());
        let (buffer, ready, is_over) = (Vec::new(), VecDeque::new(), false);
        let mut tokens = Tokens { body, buffer, ready, is_over, connection };
        if status != StatusCode::OK {
            while tokens.buffer.len() < EVENT_BYTES && tokens.more().await.is_ok_and(|more| more) {}
            let said = serde_json::from_slice::<Value>(&tokens.buffer).unwrap_or_default();
            let said = said.pointer("/error/message").or(said.get("message")).and_then(Value::as_str);
            return Err(self.failed(&format!("status {status}: {}", said.map_or_else(String::new, short))));
        }
        Ok(tokens)
    }

    /// A failure of the server.
    pub fn failed(&self, cause: &str) -> ApiError {
        ApiError::decoder(format!("the decoder at {self:?}: {cause}"))
    }
}

impl Tokens {
    /// The next token; none after the last. It may be given up while it waits: nothing is lost.
    ///
    /// # Errors
    /// Returns what broke the stream, in one line.
    pub async fn next(&mut self) -> Result<Option<DrawnToken>, String> {
        loop {
            if let Some(token) = self.ready.pop_front() {
                return Ok(Some(token));
            }
            if self.is_over {
                return Ok(None);
            }
            while let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                self.read(line.trim_ascii())?;
            }
            if self.ready.is_empty() && !self.is_over && !self.more().await? {
                return Err("its answer broke off".to_owned());
            }
        }
    }

    /// Reads more bytes; false where there are none.
    async fn more(&mut self) -> Result<bool, String> {
        match self.body.frame().await {
            None => Ok(false),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    self.buffer.extend_from_slice(bytes);
                }
                if self.buffer.len() > EVENT_BYTES { Err("an event is too long".to_owned()) } else { Ok(true) }
            }
        }
    }

    /// Reads a line of the stream.
    fn read(&mut self, line: &[u8]) -> Result<(), String> {
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { return Ok(()) };
        if data == b"[DONE]" {
            self.is_over = true;
            return Ok(());
        }
        let event: Value = serde_json::from_slice(data).map_err(|_| "an event is not JSON".to_owned())?;
        if let Some(error) = event.get("error") {
            let said = error.get("message").or(Some(error)).and_then(Value::as_str).unwrap_or("an error");
            return Err(short(said));
        }
        let Some(choice) = event.pointer("/choices/0") else { return Ok(()) };
        let ids = choice.get("token_ids").filter(|ids| !ids.is_null());
        let ids: Vec<u32> = match ids {
            Some(ids) => serde_json::from_value(ids.clone()).map_err(|_| "its token ids are none".to_owned())?,
            None if choice["text"].as_str().is_some_and(|text| !text.is_empty()) => {
                return Err("it does not return token ids (`return_token_ids`)".to_owned());
            }
            None => Vec::new(),
        };
        self.ready.extend(ids.iter().enumerate().map(|(place, &token)| DrawnToken {
            token,
            margin: f32::INFINITY,
            logprobs: logprobs(&choice["logprobs"], place),
        }));
        Ok(())
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        // A server whose client leaves draws no further tokens.
        self.connection.abort();
    }
}

/// Log-probabilities of a token, whose tokens are named `token_id:N`.
fn logprobs(told: &Value, place: usize) -> Option<Box<Logprobs>> {
    let drawn = told.get("token_logprobs")?.get(place)?.as_f64()? as f32;
    let id = |name: &str| name.strip_prefix("token_id:")?.parse().ok();
    let all = told.get("top_logprobs").and_then(|all| all.get(place)).and_then(Value::as_object);
    let entry = |(name, value): (&String, &Value)| Some((id(name)?, value.as_f64()? as f32));
    let mut top: Vec<(u32, f32)> = all.into_iter().flatten().filter_map(entry).collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    Some(Box::new(Logprobs { drawn, top }))
}

/// The body of a request.
fn body(Continuation { ids, id, cache_salt, settings }: &Continuation<'_>) -> Value {
    let sampling = &settings.sampling;
    let mut body = json!({
        "prompt": ids,
        "max_tokens": settings.max_tokens - 1,
        "min_tokens": sampling.min_tokens.saturating_sub(1),
        "stream": true,
        "return_token_ids": true,
        "skip_special_tokens": false,
        "temperature": sampling.temperature,
        "top_p": if sampling.top_p > 0.0 { sampling.top_p } else { 1.0 },
        "top_k": match (sampling.top_p > 0.0, sampling.top_k) {
            (false, _) => 1,
            (true, 0) => -1,
            (true, most) => i64::from(most),
        },
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": sampling.stop_token_ids,
        "seed": sampling.seed as i64,
        "kv_transfer_params": {"tributary": {"id": id}},
    });
    if !sampling.logit_bias.is_empty() {
        let bias = sampling.logit_bias.iter().map(|(id, bias)| (id.to_string(), json!(bias)));
        body["logit_bias"] = Value::Object(bias.collect());
    }
    if let Some(top) = settings.returns.logprobs {
        body["logprobs"] = top.into();
        body["return_tokens_as_token_ids"] = true.into();
    }
    if let Some(salt) = cache_salt {
        body["cache_salt"] = (*salt).into();
    }
    body
}

#[cfg(test)]
mod tests {
    use tributary_protocol::Sampling;

    use super::*;

    #[test]
    fn a_url_names_a_server_without_tls() {
        for (url, shown) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("http://gpu-7", "http://gpu-7:80"),
            ("http://[::1]:8000/v1/", "http://[::1]:8000"),
            ("http://host:1/a/b/v1", "http://host:1/a/b"),
        ] {
            assert_eq!(format!("{:?}", Decoder::new(url, Some("key")).expect(url)), shown);
        }
        for url in ["", "host:8000", "https://host", "http://", "http:///v1", "http://a@b", "http://a b"] {
            assert!(Decoder::new(url, None).is_err(), "{url}");
        }
        assert!(Decoder::new("http://a", Some("two words")).is_err());
    }

    #[test]
    fn a_request_goes_on_as_it_would_here() {
        let sampling = Sampling {
            min_tokens: 3,
            stop_token_ids: vec![9],
            logit_bias: vec![(4, -100.0)],
            seed: u64::MAX,
            ..Sampling::default()
        };
        let settings = RequestSettings { max_tokens: 8, sampling, ..RequestSettings::default() };
        let wanted = Continuation { ids: &[1, 2, 3], id: "kv-1", cache_salt: Some("salt"), settings: &settings };
        let body = body(&wanted);
        assert_eq!((&body["max_tokens"], &body["min_tokens"]), (&json!(7), &json!(2)), "one is drawn already");
        assert_eq!((&body["top_k"], &body["seed"], &body["temperature"]), (&json!(-1), &json!(-1), &json!(0.0)));
        assert_eq!(body["logit_bias"], json!({"4": -100.0}));
        assert_eq!((&body["cache_salt"], &body["prompt"]), (&json!("salt"), &json!([1, 2, 3])));
        assert_eq!(body["kv_transfer_params"], json!({"tributary": {"id": "kv-1"}}));
        assert!(body.get("logprobs").is_none());
        let settings = RequestSettings {
            sampling: Sampling { top_p: 0.0, top_k: 40, ..settings.sampling.clone() },
            ..settings.clone()
        };
        let likeliest = super::body(&Continuation { cache_salt: None, settings: &settings, ..wanted });
        assert_eq!((&likeliest["top_k"], &likeliest["top_p"]), (&json!(1), &json!(1.0)), "the likeliest alone");
        assert!(likeliest.get("cache_salt").is_none());
    }

    #[test]
    fn log_probabilities_are_read_by_token() {
        let told = json!({
            "tokens": ["token_id:5", "token_id:6"],
            "token_logprobs": [-0.5, -1.5],
            "top_logprobs": [{"token_id:5": -0.5}, {"token_id:7": -0.25, "token_id:6": -1.5, "odd": 0}],
        });
        let second = logprobs(&told, 1).expect("two tokens");
        assert_eq!((second.drawn, second.top), (-1.5, vec![(7, -0.25), (6, -1.5)]));
        assert!(logprobs(&told, 2).is_none() && logprobs(&Value::Null, 0).is_none());
    }
}
