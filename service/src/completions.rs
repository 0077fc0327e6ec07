//! `POST /v1/completions`.

use axum::extract::State;
use axum::response::Response;
use tributary_engine::{Clock, PromptText};

use crate::answering::respond;
use crate::body::Fields;
use crate::error::ApiError;
use crate::input::Generation;
use crate::input::completion::CompletionRequest;
use crate::output::{Form, Frame};
use crate::running::{Running, Wanted};
use crate::shared::Shared;

/// Answers a text completion request.
pub async fn completions(State(shared): State<Shared>, fields: Result<Fields, ApiError>) -> Result<Response, ApiError> {
    let clock = Clock::start();
    let begun = begin(&shared, fields, clock).await;
    let (running, Generation { delivery, .. }) = begun.inspect_err(|error| shared.metrics.refused(error))?;
    let frame = Frame::new(Form::Text, running.request, &shared.model);
    respond(running, frame, delivery).await
}

async fn begin(
    shared: &Shared,
    fields: Result<Fields, ApiError>,
    clock: Clock,
) -> Result<(Running, Generation), ApiError> {
    let CompletionRequest { prompt, generation } =
        CompletionRequest::read(fields?, &shared.model, shared.client.settings())?;
    shared.limits.check_documents(prompt.documents.len())?;
    let vocabulary = shared.client.vocabulary();
    if let PromptText::Ids(ids) = &prompt.text
        && let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary)
    {
        return Err(ApiError::parameter("prompt", format!("token id {id}: the model knows {vocabulary} ids")));
    }
    let settings = generation.settings.clone();
    let prepare = move |client: &tributary_engine::Client| client.prepare_prompt(&prompt);
    let running = Running::begin(shared, (Wanted::Answer, clock), settings, prepare).await?;
    Ok((running, generation))
}
