//! What is served where.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::deadline::{self, Deadlines};
use crate::error::{self, ApiError};
use crate::guard::{self, Access};
use crate::input::chat::ChatRequest;
use crate::input::completion::CompletionRequest;
use crate::metrics::TEXT;
use crate::page;
use crate::ready::Readiness;
use crate::shared::Shared;
use crate::upload::{self, Bodies};
use crate::{chunks, completions, openapi, status};

/// All routes, for those who may ask, within the limits of bodies and time.
pub fn routes(shared: Shared, access: Access, deadlines: Deadlines) -> Router {
    let (bodies, counts) = (Bodies::new(shared.limits), Arc::clone(&shared.metrics));
    Router::new()
        .route("/v1/chat/completions", post(completions::complete::<ChatRequest>))
        .route("/v1/completions", post(completions::complete::<CompletionRequest>))
        .route("/v1/chunks", post(chunks::chunks))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/openapi.json", get(openapi::document))
        .route("/health", get(|| async { "alive\n" }))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/status", get(status::status))
        .route("/", get(page::page))
        .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
        .fallback(|| async { ApiError::invalid("there is nothing here").with_status(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async {
            ApiError::invalid("this cannot be asked in this way").with_status(StatusCode::METHOD_NOT_ALLOWED)
        })
        // Bodies are bounded before they come here.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
        .layer(from_fn_with_state(bodies, upload::whole))
        .layer(from_fn_with_state(access, guard::guard))
        .layer(from_fn_with_state(deadlines, deadline::within))
        .layer(from_fn_with_state(counts, error::counted))
}

async fn models(State(shared): State<Shared>) -> Json<Value> {
    Json(json!({"object": "list", "data": [described(&shared.model)]}))
}

async fn model(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    // What is no text is no model's name.
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    if name == *shared.model {
        return Ok(Json(described(&shared.model)));
    }
    Err(ApiError::unknown_model(&name, &shared.model))
}

fn described(model: &str) -> Value {
    json!({"id": model, "object": "model", "created": 0, "owned_by": "tributary"})
}

/// Whether requests may come: the ranks live, the last self-test was right, and the service is not about to end.
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

async fn metrics(State(shared): State<Shared>) -> Response {
    let kind = [(header::CONTENT_TYPE, TEXT)];
    if *shared.draining.borrow() {
        shared.metrics.drains();
    }
    (kind, shared.metrics.render()).into_response()
}
