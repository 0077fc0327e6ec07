//! What is served where.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::watch;
use tributary_engine::Client;

use crate::chat;
use crate::error::ApiError;
use crate::metrics::Metrics;

/// The longest body of a request.
const BODY_BYTES: usize = 64 << 20;

/// What handlers share.
#[derive(Clone)]
pub struct Shared {
    /// The way to the engine.
    pub client: Client,
    /// The model's name.
    pub model: Arc<str>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whether the service is about to end: no more requests are taken.
    pub draining: watch::Receiver<bool>,
}

/// All routes.
pub fn routes(shared: Shared) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { "alive\n" }))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
        .fallback(|| async { ApiError::invalid("there is nothing here").with_status(StatusCode::NOT_FOUND) })
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(shared)
}

async fn completions(
    State(shared): State<Shared>,
    body: Result<Json<crate::input::ChatRequest>, axum::extract::rejection::JsonRejection>,
) -> Result<Response, ApiError> {
    if *shared.draining.borrow() {
        let error = ApiError::internal("the service is about to end").with_status(StatusCode::SERVICE_UNAVAILABLE);
        return Err(error);
    }
    chat::completions(State(shared), body).await
}

async fn models(State(shared): State<Shared>) -> Json<Value> {
    let model = json!({"id": &*shared.model, "object": "model", "created": 0, "owned_by": "tributary"});
    Json(json!({"object": "list", "data": [model]}))
}

/// Whether requests are taken: the ranks have agreed before the service begins, and it ends with them.
async fn ready(State(shared): State<Shared>) -> Response {
    match *shared.draining.borrow() {
        false => "ready\n".into_response(),
        true => (StatusCode::SERVICE_UNAVAILABLE, "the service is about to end\n").into_response(),
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, shared.metrics.render(&shared.client)).into_response()
}
