//! `POST /v1/chat/completions` and `POST /v1/completions`.

use axum::extract::State;
use axum::response::Response;

use crate::answering::respond;
use crate::arrival::Arrival;
use crate::error::ApiError;
use crate::input::Completed;
use crate::output::Frame;
use crate::running::{Running, Wanted};
use crate::shared::Shared;

/// Answers a request with a text.
pub async fn complete<R: Completed>(State(shared): State<Shared>, arrival: Arrival) -> Result<Response, ApiError> {
    let settings = |request: &R| request.generation().settings.clone();
    let (running, request) = Running::begin(&shared, arrival, Wanted::Answer, settings).await?;
    let frame = Frame::new(R::FORM, running.request, &shared.model);
    respond(running, frame, request.generation().delivery.clone()).await
}
