//! Access of web pages: cross-origin requests of browsers (CORS). Only pages of the service's
//! configured origins have it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::guard::Doors;

/// Seconds for which a browser remembers the answer to a preflight.
const REMEMBERED: HeaderValue = HeaderValue::from_static("600");

/// Headers that a page may read of an answer.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, retry-after");

/// Answers preflights, and names the pages that may read an answer.
pub async fn shared(State(doors): State<Arc<Doors>>, request: Request, next: Next) -> Response {
    let origin = allowed(&doors.origins, request.headers());
    let asks = request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let wanted = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let Some(origin) = origin else { return next.run(request).await };
    let is_preflight = asks && request.method().as_str() == "OPTIONS";
    let mut response = if is_preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if is_preflight {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, REMEMBERED);
        headers.extend(wanted.map(|wanted| (header::ACCESS_CONTROL_ALLOW_HEADERS, wanted)));
    }
    response
}

/// The origin of a page that may ask, as its browser named it.
fn allowed(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let named = origin.to_str().ok()?;
    origins.iter().any(|known| known == "*" || known.eq_ignore_ascii_case(named)).then(|| origin.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_origins_may_ask() {
        let of = |origins: &[&str], origin: &'static str| {
            let headers = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
            let origins: Vec<String> = origins.iter().map(|&origin| origin.to_owned()).collect();
            allowed(&origins, &headers)
        };
        assert_eq!(of(&[], "https://a.example"), None);
        assert_eq!(
            of(&["https://a.example"], "https://a.example"),
            Some(HeaderValue::from_static("https://a.example"))
        );
        assert_eq!(of(&["https://a.example"], "https://a.example.evil"), None);
        assert_eq!(of(&["*"], "null"), Some(HeaderValue::from_static("null")));
        assert_eq!(allowed(&["*".to_owned()], &HeaderMap::new()), None, "no page asks");
    }
}
