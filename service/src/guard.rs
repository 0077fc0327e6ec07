//! Who may ask.
//!
//! A service with keys answers whoever shows one of them. A service without keys that only this machine reaches must also keep off
//! pages in this machine's browsers: such a page reaches it by a name that its author has led here; the name stands in the Host
//! header, and no page can change that.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// Paths that are answered without a key: what a launcher or a balancer asks, and the page, which has a field for the key and
/// holds nothing secret.
const OPEN: [&str; 3] = ["/health", "/ready", "/"];

/// Where Prometheus asks.
const METRICS: &str = "/metrics";

/// The keys of a service. Only their hashes are kept, and nothing prints them.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeys(Vec<blake3::Hash>);

impl ApiKeys {
    /// Reads a file with one key a line; empty lines and lines that begin with `#` are passed over.
    ///
    /// # Errors
    /// The file cannot be read, or has no key, in one line that shows nothing of its content.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys: Vec<_> = lines.map(|key| blake3::hash(key.as_bytes())).collect();
        if keys.is_empty() {
            return Err(format!("{}: there is no key in this file", path.display()));
        }
        Ok(Self(keys))
    }

    /// Whether this is one of the keys. The time that it takes tells nothing of how much of a key is right: hashes are compared,
    /// each of them, and in constant time.
    fn knows(&self, key: &str) -> bool {
        let hash = blake3::hash(key.as_bytes());
        self.0.iter().fold(false, |known, other| known | (*other == hash))
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// Who may ask a service.
#[derive(Debug, Clone)]
pub enum Access {
    /// Whoever shows a key.
    Keys {
        /// The keys.
        keys: Arc<ApiKeys>,
        /// Whether `/metrics` needs none.
        metrics_public: bool,
    },
    /// Whoever asks this machine by one of its own names.
    Local,
    /// Everybody.
    Everybody,
}

/// Lets requests through that may ask.
pub async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let refusal = match &access {
        Access::Everybody => None,
        Access::Local => not_local(request.headers()),
        Access::Keys { keys, metrics_public } => {
            let path = request.uri().path();
            let is_open = OPEN.contains(&path) || (*metrics_public && path == METRICS);
            if is_open { None } else { without_key(keys, request.headers()) }
        }
    };
    match refusal {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    }
}

/// Why a request shows no key that is known.
fn without_key(keys: &ApiKeys, headers: &HeaderMap) -> Option<ApiError> {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let key = shown.and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    match key {
        None => Some(ApiError::unauthorized("an API key is needed: `Authorization: Bearer KEY`")),
        Some(key) if keys.knows(key) => None,
        Some(_) => Some(ApiError::unauthorized("this API key is not known here")),
    }
}

fn not_local(headers: &HeaderMap) -> Option<ApiError> {
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    if host.is_none_or(is_local) {
        return None;
    }
    let message = "the Host header names another machine; this service is for its own only";
    Some(ApiError::invalid(message).with_status(StatusCode::FORBIDDEN))
}

/// Whether a host, perhaps with a port, is this machine.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.1.2.3", "[::1]:8080", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com:80", "127.0.0.1.nip.io", "192.168.0.1", "[fe80::1]:8080"]
        {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn only_a_key_of_the_file_opens_and_nothing_shows_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        std::fs::write(&path, "# for the web shop\nfirst-key\n\n  second-key  \n").expect("written");
        let keys = ApiKeys::read(&path).expect("two keys");
        assert_eq!(format!("{keys:?}"), "2 keys");
        let refusal = |value: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).expect("text"))]);
            without_key(&keys, &headers).map(|error| error.status.as_u16())
        };
        for value in ["Bearer first-key", "bearer second-key", "BEARER  first-key"] {
            assert_eq!(refusal(value), None, "{value}");
        }
        for value in ["Bearer first-ke", "Bearer first-key2", "Bearer ", "Bearer", "first-key", "Basic first-key"] {
            assert_eq!(refusal(value), Some(401), "{value}");
        }
        let comment = "Bearer # for the web shop";
        assert_eq!(refusal(comment), Some(401), "a comment is no key");
        assert!(without_key(&keys, &HeaderMap::new()).is_some(), "no key at all");
        std::fs::write(&path, "# nothing\n").expect("written");
        assert!(ApiKeys::read(&path).expect_err("no key").ends_with("keys: there is no key in this file"));
    }
}
