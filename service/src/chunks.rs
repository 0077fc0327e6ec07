//! `POST /v1/chunks`: documents are prefilled ahead of use. A later chat with the same documents,
//! after the same system text, finds them warm.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use tributary_engine::{Update, Work};

use crate::arrival::Arrival;
use crate::error::ApiError;
use crate::input::chunks::ChunksRequest;
use crate::output::ChunksAnswer;
use crate::running::Running;
use crate::shared::Shared;

/// Prefills documents.
pub async fn chunks(State(shared): State<Shared>, arrival: Arrival) -> Result<Response, ApiError> {
    let (mut all, _) = Running::begin::<ChunksRequest>(&shared, arrival, Work::Chunks).await?;
    let mut running = all.pop().ok_or_else(|| ApiError::internal("a bug: nothing was handed in"))?;
    let kept = match running.next().await {
        Ok(Update::Kept(kept)) => Ok(kept),
        Ok(Update::Failed(failure)) => Err(failure.into()),
        Ok(Update::Begun(_) | Update::FirstToken(..) | Update::Token(_) | Update::Done(_)) => {
            Err(ApiError::internal("a bug: chunks were due, and an answer came"))
        }
        Err(error) => Err(error),
    };
    let kept = kept.inspect_err(|_| running.failed())?;
    running.kept();
    Ok(Json(ChunksAnswer::of(&kept)).into_response())
}
