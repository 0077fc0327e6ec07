//! Routes of the service.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::body::short;
use crate::deadline::{self, Deadlines};
use crate::error::{self, ApiError};
use crate::guard::{self, Access, Doors};
use crate::hand_over::handlers as hand_over;
use crate::input::chat::ChatRequest;
use crate::input::completion::CompletionRequest;
use crate::metrics::{OPENMETRICS, TEXT, openmetrics};
use crate::page;
use crate::ready::Readiness;
use crate::shared::Shared;
use crate::upload::{self, Bodies};
use crate::{chunks, completions, openapi, origin, status};

/// Every route, and the method that it takes.
const ROUTES: [(&str, &str); 16] = [
    ("DELETE", "/v1/prefill/ID"),
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/ready"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/chunks"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/kv/ID/LAYER"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/NAME"),
    ("POST", "/v1/prefill"),
    ("GET", "/v1/prefill/ID"),
    ("GET", "/v1/status"),
    ("GET", "/version"),
];

/// All routes, for those who may ask, within the limits of bodies and time. Bodies are read on the
/// routes that take one, and of those who may ask.
pub fn routes(shared: Shared, access: Access, doors: Doors, deadlines: Deadlines) -> Router {
    let (bodies, counts) = (Bodies::new(shared.limits), Arc::clone(&shared.metrics));
    Router::new()
        .route("/v1/chat/completions", post(completions::complete::<ChatRequest>))
        .route("/v1/completions", post(completions::complete::<CompletionRequest>))
        .route("/v1/chunks", post(chunks::chunks))
        .route("/v1/prefill", post(hand_over::prefill))
        // No body is read for a method of HTTP that is not allowed.
        .route_layer(from_fn_with_state(bodies, upload::whole))
        .route("/v1/prefill/{id}", get(hand_over::state).delete(hand_over::release))
        .route("/v1/kv/{id}/{layer}", get(hand_over::layer))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/openapi.json", get(openapi::document))
        .route("/health", get(|| async { "alive\n" }))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/status", get(status::status))
        .route("/", get(page::page))
        .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        // Bodies are bounded before they come here.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
        .layer(from_fn_with_state(access, guard::guard))
        .layer(from_fn_with_state(deadlines, deadline::within))
        .layer(from_fn_with_state(counts, error::counted))
        .layer(from_fn_with_state(Arc::new(doors), origin::shared))
        .layer(from_fn(named))
}

/// A path that is not served.
async fn unknown(method: Method, uri: Uri) -> ApiError {
    let routes: Vec<String> = ROUTES.iter().map(|(method, path)| format!("{method} {path}")).collect();
    let message = format!("{method} {} is not served here; there are {}", short(uri.path()), routes.join(", "));
    ApiError::invalid(message).with_status(StatusCode::NOT_FOUND)
}

/// A path that is served by another method.
async fn not_allowed(method: Method, uri: Uri) -> ApiError {
    let path = uri.path();
    // A part of a path in capitals stands for any, and the last one for several.
    let is_it = |(_, route): &&(&str, &str)| {
        let (fixed, rest) = route.split_at(route.find(|c: char| c.is_ascii_uppercase()).unwrap_or(route.len()));
        if rest.is_empty() { *route == path } else { path.starts_with(fixed) }
    };
    let wanted = ROUTES.iter().find(is_it).map_or("another method", |(method, _)| method);
    let message = format!("{method} {} is not served here; this path takes {wanted}", short(path));
    ApiError::invalid(message).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// The name of a request, which its client may give, and which comes back with the answer.
async fn named(request: Request, next: Next) -> Response {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = HeaderName::from_static("x-request-id");
    let is_short = |value: &&HeaderValue| value.len() <= 128 && value.to_str().is_ok();
    let id = request.headers().get(&name).filter(is_short).cloned().or_else(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
        HeaderValue::from_str(&format!("req-{since:x}-{}", COUNT.fetch_add(1, Ordering::Relaxed))).ok()
    });
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert(name, id);
    }
    response
}

async fn models(State(shared): State<Shared>) -> Json<Value> {
    Json(json!({"object": "list", "data": [described(&shared)]}))
}

async fn model(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    // A path that is no text is no model's name.
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    if name == *shared.model {
        return Ok(Json(described(&shared)));
    }
    Err(ApiError::unknown_model(&name, &shared.model))
}

fn described(shared: &Shared) -> Value {
    let (model, positions) = (&*shared.model, shared.client.shape().max_positions);
    let modalities = if shared.client.pictures().is_some() { &["text", "image"][..] } else { &["text"] };
    json!({"id": model, "object": "model", "created": 0, "owned_by": "tributary", "max_model_len": positions,
        "input_modalities": modalities})
}

/// Whether requests may come: the ranks live, the last self-test was right, and the service is not
/// about to end.
async fn ready(State(shared): State<Shared>) -> Response {
    let not = |reason: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response();
    if *shared.draining.borrow() {
        return not("the service is about to end");
    }
    if shared.client.desk().is_closed() {
        return not("the ranks have failed");
    }
    if let Some(rank) = shared.client.pulses().read().iter().position(|pulse| !pulse.is_up) {
        return not(&format!("rank {rank} gives no sign of life"));
    }
    match &*shared.readiness.borrow() {
        Readiness::Ready => "ready\n".into_response(),
        Readiness::Starting => not("the first self-test has not ended yet"),
        Readiness::Wrong(reason) => not(reason),
    }
}

/// The metrics, in the form and the encoding that the client asks for.
async fn metrics(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    if *shared.draining.borrow() {
        shared.metrics.drains();
    }
    let accepts = |name: HeaderName, what: &str| {
        headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(|value| value.contains(what)))
    };
    let text = shared.metrics.render();
    let (kind, text) = match accepts(header::ACCEPT, "application/openmetrics-text") {
        true => (OPENMETRICS, openmetrics(&text)),
        false => (TEXT, text),
    };
    let kind = [(header::CONTENT_TYPE, kind)];
    match gzip(&text).filter(|_| accepts(header::ACCEPT_ENCODING, "gzip")) {
        Some(bytes) => (kind, [(header::CONTENT_ENCODING, "gzip")], bytes).into_response(),
        None => (kind, text).into_response(),
    }
}

fn gzip(text: &str) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).ok()?;
    encoder.finish().ok()
}
