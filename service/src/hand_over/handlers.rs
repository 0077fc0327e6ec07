//! `POST /v1/prefill` computes a prompt and holds its keys and values, `GET /v1/kv/ID/LAYER`
//! streams them, `GET /v1/prefill/ID` tells the state, `DELETE /v1/prefill/ID` lets go.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tributary_engine::Work;

use super::prefilling::begin;
use super::rows::{self, Part};
use crate::arrival::Arrival;
use crate::error::ApiError;
use crate::guard::Asker;
use crate::input::prefill::PrefillRequest;
use crate::running::Running;
use crate::shared::Shared;

/// Header of a body in JSON.
const JSON: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// Begins a prefill, and answers as soon as it is planned.
pub async fn prefill(State(shared): State<Shared>, arrival: Arrival) -> Result<Response, ApiError> {
    let asker = arrival.asker;
    let (mut all, _) = Running::begin::<PrefillRequest>(&shared, arrival, Work::HandOver).await?;
    let running = all.pop().ok_or_else(|| ApiError::internal("a bug: nothing was handed in"))?;
    let entry = begin(running, asker).await?;
    Ok((StatusCode::ACCEPTED, JSON, entry.told()?).into_response())
}

/// Tells the state of a prefill.
pub async fn state(
    State(shared): State<Shared>,
    Extension(asker): Extension<Asker>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| unreadable())?;
    Ok((JSON, shared.hand_overs.find(&id, asker)?.told()?).into_response())
}

/// Lets go of a prefill, in any state.
pub async fn release(
    State(shared): State<Shared>,
    Extension(asker): Extension<Asker>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let Path(id) = id.map_err(|_| unreadable())?;
    let entry = shared.hand_overs.find(&id, asker)?;
    entry.release();
    entry.forget();
    Ok(StatusCode::NO_CONTENT)
}

/// Streams a layer, once it is there.
pub async fn layer(
    State(shared): State<Shared>,
    Extension(asker): Extension<Asker>,
    path: Result<Path<(String, usize)>, PathRejection>,
    part: Result<Query<Part>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Path((id, layer)) = path.map_err(|_| unreadable())?;
    let Query(part) = part.map_err(|error| ApiError::invalid(error.body_text()))?;
    let entry = shared.hand_overs.find(&id, asker)?;
    rows::stream(&shared, entry, layer, part).await
}

fn unreadable() -> ApiError {
    ApiError::invalid("the path is /v1/kv/ID/LAYER or /v1/prefill/ID").with_status(StatusCode::NOT_FOUND)
}
