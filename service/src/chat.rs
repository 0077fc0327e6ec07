//! `POST /v1/chat/completions`.

use axum::extract::State;
use axum::response::Response;
use tributary_engine::Clock;

use crate::answering::respond;
use crate::body::Fields;
use crate::error::ApiError;
use crate::input::Generation;
use crate::input::chat::ChatRequest;
use crate::output::{Form, Frame};
use crate::running::{Running, Wanted};
use crate::shared::Shared;

/// Answers a chat completion request.
pub async fn completions(State(shared): State<Shared>, fields: Result<Fields, ApiError>) -> Result<Response, ApiError> {
    // The clock of the time to first token starts when the request is here.
    let clock = Clock::start();
    let begun = begin(&shared, fields, clock).await;
    let (running, Generation { delivery, .. }) = begun.inspect_err(|error| shared.metrics.refused(error))?;
    let frame = Frame::new(Form::Chat, running.request, &shared.model);
    respond(running, frame, delivery).await
}

async fn begin(
    shared: &Shared,
    fields: Result<Fields, ApiError>,
    clock: Clock,
) -> Result<(Running, Generation), ApiError> {
    let ChatRequest { conversation, generation } = ChatRequest::read(fields?, &shared.model, shared.client.settings())?;
    shared.limits.check_documents(conversation.documents.len())?;
    let settings = generation.settings.clone();
    let prepare = move |client: &tributary_engine::Client| client.prepare(&conversation);
    let running = Running::begin(shared, (Wanted::Answer, clock), settings, prepare).await?;
    Ok((running, generation))
}
