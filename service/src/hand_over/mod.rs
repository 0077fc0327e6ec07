//! Prompts that are prefilled here and decoded by another program: `POST /v1/prefill` computes a
//! prompt and holds its keys and values, `GET /v1/kv/ID/LAYER` streams them, `GET /v1/prefill/ID`
//! tells the state, `DELETE /v1/prefill/ID` lets go.

mod entry;
mod relay;
mod rows;
mod told;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tributary_engine::Work;

use self::entry::{Entry, begin};
use crate::arrival::Arrival;
use crate::body::short;
use crate::error::ApiError;
use crate::guard::Asker;
use crate::input::prefill::PrefillRequest;
use crate::running::Running;
use crate::shared::Shared;

pub use self::relay::{Relay, Updates};
#[cfg(test)]
pub use self::told::Told;

/// Header of a body in JSON.
const JSON: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// The prompts that are held for other programs, by their ids.
pub struct HandOvers {
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    /// Time after the last use of an entry for which it is held.
    expiry: Duration,
    /// Whether an id is of use to the client alone that got it: clients are told apart by keys.
    is_bound: bool,
    /// Answers that go on elsewhere.
    relays: AtomicUsize,
}

impl HandOvers {
    /// None yet.
    pub fn new(expiry: Duration, is_bound: bool) -> Self {
        Self { entries: Mutex::default(), expiry, is_bound, relays: AtomicUsize::new(0) }
    }

    /// Number of answers that go on elsewhere.
    pub fn relays(&self) -> usize {
        self.relays.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry that this client may read.
    fn find(&self, id: &str, asker: Asker) -> Result<Arc<Entry>, ApiError> {
        let found =
            self.lock().get(id).cloned().filter(|entry| !self.is_bound || entry.asker.is_none_or(|own| own == asker));
        found.inspect(|entry| entry.is_used()).ok_or_else(|| {
            let message = format!("there is no prefill `{}`: it has expired, was released, or never was", short(id));
            ApiError::invalid(message).with_status(StatusCode::NOT_FOUND)
        })
    }
}

/// Rows of a layer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The first row.
    first: Option<usize>,
    /// Number of rows; all others where absent.
    rows: Option<usize>,
}

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
    shared.hand_overs.find(&id, asker)?.release();
    shared.hand_overs.lock().remove(&id);
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
    rows::stream(&shared, entry, layer, (part.first.unwrap_or(0), part.rows)).await
}

fn unreadable() -> ApiError {
    ApiError::invalid("the path is /v1/kv/ID/LAYER or /v1/prefill/ID").with_status(StatusCode::NOT_FOUND)
}
