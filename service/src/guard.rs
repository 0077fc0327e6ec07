//! Who may ask a service that only this machine reaches and that asks for no key. A page in a browser of this machine reaches it
//! too, by a name that its author has led here; the name stands in the Host header, and no page can change that.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// Lets requests through that are for this machine by its own names.
pub async fn only_local(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    if host.is_none_or(is_local) {
        return next.run(request).await;
    }
    let message = "the Host header names another machine; this service is for its own only";
    ApiError::invalid(message).with_status(StatusCode::FORBIDDEN).into_response()
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
    use super::is_local;

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
}
