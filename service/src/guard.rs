//! Access to a service.
//!
//! A service with keys answers requests that show one of them. A service without keys that only
//! this machine reaches must also refuse web pages in this machine's browsers. Such a page reaches
//! it by a name that its author has pointed here. The name is in the Host header, which no page can
//! change.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// Paths that are answered without a key: those of launchers and balancers, and the page, which has
/// a field for the key and holds nothing secret.
const OPEN: [&str; 3] = ["/health", "/ready", "/"];

/// Path of Prometheus' scrapes.
const METRICS: &str = "/metrics";

/// The keys of a service. Only their hashes are kept, and nothing prints them.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeys(Vec<blake3::Hash>);

impl ApiKeys {
    /// Reads a file with one key a line; empty lines and lines that begin with `#` are passed over.
    ///
    /// # Errors
    /// Returns one line that shows nothing of the file's content if the file cannot be read or has
    /// no key.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = text.trim_start_matches('\u{feff}');
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines: Vec<&str> = lines.collect();
        // A header carries no others: such a key could never be shown.
        if let Some(line) = lines.iter().position(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(format!("{}: key {} has letters beyond ASCII, or spaces in it", path.display(), line + 1));
        }
        let keys: Vec<_> = lines.into_iter().map(|key| blake3::hash(key.as_bytes())).collect();
        if keys.is_empty() {
            return Err(format!("{}: there is no key in this file", path.display()));
        }
        Ok(Self(keys))
    }

    /// Whether this is one of the keys. Its time does not depend on the number of right characters:
    /// all hashes are compared in constant time.
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

/// The client that asks, distinguished by its key, or else by its address. It travels with a
/// request, as an extension.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asker(pub u64);

/// The address that a connection comes from. It goes with a request, as an extension.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

impl Asker {
    fn of(bytes: &[u8]) -> Self {
        let mut number = [0; 8];
        number.copy_from_slice(&blake3::hash(bytes).as_bytes()[..8]);
        Self(u64::from_le_bytes(number))
    }

    /// A client without a key.
    fn at(peer: IpAddr) -> Self {
        match peer {
            IpAddr::V4(address) => Self::of(&address.octets()),
            // A host has a whole /64 of IPv6's addresses to itself.
            IpAddr::V6(address) => Self::of(&address.octets()[..8]),
        }
    }
}

/// Names of a service besides this machine's own, and origins of web pages that may use it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Doors {
    /// Hosts, without a port.
    pub hosts: Vec<String>,
    /// Origins, such as `https://example.com`; `*` for all.
    pub origins: Vec<String>,
}

/// Access rule of a service.
#[derive(Debug, Clone)]
pub enum Access {
    /// Requests that show a key.
    Keys {
        /// The keys.
        keys: Arc<ApiKeys>,
        /// Whether `/metrics` needs none.
        metrics_public: bool,
    },
    /// Requests to this machine by one of its own names, or by one of these.
    Local {
        /// Other names of this machine, a container's for example.
        hosts: Arc<[String]>,
    },
    /// All requests.
    Everybody,
}

/// Lets requests through that may ask, and notes who does.
pub async fn guard(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    let refusal = not_one_host(&request).or_else(|| match &access {
        Access::Everybody => None,
        Access::Local { hosts } => not_local(request.headers(), hosts),
        Access::Keys { keys, metrics_public } => {
            let path = request.uri().path();
            let is_open = OPEN.contains(&path) || (*metrics_public && path == METRICS);
            if is_open { None } else { without_key(keys, request.headers()) }
        }
    });
    if let Some(error) = refusal {
        return error.into_response();
    }
    let key = if matches!(access, Access::Keys { .. }) { key(request.headers()) } else { None };
    let peer = request.extensions().get::<Peer>().map(|peer| Asker::at(peer.0));
    let asker = key.map(|key| Asker::of(key.as_bytes())).or(peer).unwrap_or_default();
    request.extensions_mut().insert(asker);
    next.run(request).await
}

/// HTTP/1.1 wants one Host header; two are how requests are smuggled past a proxy.
fn not_one_host(request: &Request) -> Option<ApiError> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    let wants = request.version() == Version::HTTP_11 && request.uri().host().is_none();
    let message = match hosts {
        0 if wants => "a request of HTTP/1.1 has a Host header",
        0 | 1 => return None,
        _ => "a request has one Host header",
    };
    Some(ApiError::invalid(message))
}

/// The key that a request shows.
fn key(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Why a request shows no key that is known.
fn without_key(keys: &ApiKeys, headers: &HeaderMap) -> Option<ApiError> {
    match key(headers) {
        None => Some(ApiError::unauthorized("an API key is needed: `Authorization: Bearer KEY`")),
        Some(key) if keys.knows(key) => None,
        Some(_) => Some(ApiError::unauthorized("this API key is not known here")),
    }
}

fn not_local(headers: &HeaderMap, hosts: &[String]) -> Option<ApiError> {
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    let is_known =
        |host: &str| is_local(host) || hosts.iter().any(|known| known.eq_ignore_ascii_case(without_port(host)));
    let host = crate::body::short(host.filter(|host| !is_known(host))?);
    let message =
        format!("the Host header names another machine, `{host}`; --allowed-hosts lists the names that are answered");
    Some(ApiError::invalid(message).with_status(StatusCode::FORBIDDEN))
}

/// A host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether a host, perhaps with a port, is this machine.
fn is_local(host: &str) -> bool {
    let name = without_port(host);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn other_names_are_answered_where_they_are_listed() {
        let headers = |host: &str| HeaderMap::from_iter([(header::HOST, HeaderValue::from_str(host).expect("text"))]);
        let hosts = ["tributary".to_owned()];
        assert!(not_local(&headers("Tributary:8080"), &hosts).is_none());
        let error = not_local(&headers("other:8080"), &hosts).expect("refused");
        assert!(error.message.contains("`other:8080`") && error.message.contains("--allowed-hosts"), "{error:?}");
    }

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
        std::fs::write(&path, "\u{feff}first-key\n").expect("written");
        let keys = ApiKeys::read(&path).expect("a key after a byte order mark");
        assert!(keys.knows("first-key"));
        std::fs::write(&path, "good\nschlüssel\n").expect("written");
        let error = ApiKeys::read(&path).expect_err("no header carries it");
        assert!(error.contains("key 2") && !error.contains("schl"), "{error}");
        std::fs::write(&path, "# nothing\n").expect("written");
        assert!(ApiKeys::read(&path).expect_err("no key").ends_with("keys: there is no key in this file"));
    }
}
