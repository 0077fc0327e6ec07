//! `POST /v1/chunks`: documents are prefilled ahead of use. A later chat with the same documents, behind the same system text, finds
//! them warm.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use tributary_engine::{Clock, Update};

use crate::body::Fields;
use crate::error::ApiError;
use crate::input::chunks::ChunksRequest;
use crate::output::ChunksAnswer;
use crate::running::{Running, Wanted};
use crate::shared::Shared;

/// Prefills documents.
pub async fn chunks(State(shared): State<Shared>, fields: Result<Fields, ApiError>) -> Result<Response, ApiError> {
    let clock = Clock::start();
    let begun = begin(&shared, fields, clock).await;
    let mut running = begun.inspect_err(|error| shared.metrics.refused(error))?;
    let kept = match running.next().await {
        Ok(Update::Kept(kept)) => Ok(kept),
        Ok(Update::Failed(failure)) => Err(failure.into()),
        Ok(Update::FirstToken(..) | Update::Token(_) | Update::Done(_)) => {
            Err(ApiError::internal("a bug: chunks were due, and an answer came"))
        }
        Err(error) => Err(error),
    };
    let kept = kept.inspect_err(|error| running.failed(error))?;
    running.kept();
    Ok(Json(ChunksAnswer::of(&kept)).into_response())
}

async fn begin(shared: &Shared, fields: Result<Fields, ApiError>, clock: Clock) -> Result<Running, ApiError> {
    let ChunksRequest { documents, system } = ChunksRequest::read(fields?, &shared.model)?;
    shared.limits.check_documents(documents.len())?;
    let prepare = move |client: &tributary_engine::Client| client.prepare_documents(&documents, system.as_deref());
    Running::begin(shared, (Wanted::Chunks, clock), shared.client.settings().clone(), prepare).await
}
