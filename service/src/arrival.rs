//! A request as it has come in: its body is here, and nothing has looked at it yet.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use tributary_engine::Clock;

use crate::deadline::TimeUp;
use crate::error::ApiError;
use crate::guard::Asker;
use crate::upload::Held;

/// A request that has just come in.
pub struct Arrival {
    /// The clock of its time to first token: it runs since the body is here.
    pub clock: Clock,
    /// The body, which says that it is JSON.
    pub body: Bytes,
    /// The memory that the body takes.
    pub memory: Option<Held>,
    /// Client that asks.
    pub asker: Asker,
    /// Whether the service has ended it.
    pub time_up: TimeUp,
}

impl<S: Send + Sync> FromRequest<S> for Arrival {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let clock = Clock::start();
        let time_up = request.extensions().get().cloned().unwrap_or_default();
        let memory = request.extensions().get().cloned();
        let asker = request.extensions().get().cloned().unwrap_or_default();
        // It has been read as a whole, within its limits (`upload.rs`).
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
        Ok(Self { clock, body, memory, asker, time_up })
    }
}
