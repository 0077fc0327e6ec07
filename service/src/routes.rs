//! What is served where.

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::chat;
use crate::error::ApiError;
use crate::guard;
use crate::shared::Shared;

/// The longest body of a request.
const BODY_BYTES: usize = 64 << 20;

/// All routes; where `only_local`, for requests to this machine by its own names only.
pub fn routes(shared: Shared, only_local: bool) -> Router {
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/health", get(|| async { "alive\n" }))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
        .fallback(|| async { ApiError::invalid("there is nothing here").with_status(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async {
            ApiError::invalid("this cannot be asked in this way").with_status(StatusCode::METHOD_NOT_ALLOWED)
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(shared);
    if only_local { routes.layer(from_fn(guard::only_local)) } else { routes }
}

async fn models(State(shared): State<Shared>) -> Json<Value> {
    Json(json!({"object": "list", "data": [described(&shared.model)]}))
}

async fn model(State(shared): State<Shared>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    if name == *shared.model {
        return Ok(Json(described(&shared.model)));
    }
    Err(ApiError::unknown_model(&name, &shared.model))
}

fn described(model: &str) -> Value {
    json!({"id": model, "object": "model", "created": 0, "owned_by": "tributary"})
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
