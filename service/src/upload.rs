//! Bodies of requests: read as a whole before anything looks at them, within bounds of length, of time, and of memory for all of them
//! together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use crate::error::ApiError;
use crate::limits::ClientLimits;

/// Bodies of the longest kind that may be on their way at a time; those behind them wait.
const AT_A_TIME: usize = 8;

/// A body up to this length waits for no other.
const SMALL_BYTES: usize = 1 << 20;

/// The slowest that a body may come, in bytes a second.
const SLOWEST: usize = 256 << 10;

/// Reads bodies.
#[derive(Clone)]
pub struct Bodies {
    limits: ClientLimits,
    /// Memory for long bodies, in KiB.
    memory: Arc<Semaphore>,
}

impl Bodies {
    /// A reader within these limits.
    pub fn new(limits: ClientLimits) -> Self {
        Self { limits, memory: Arc::new(Semaphore::new(AT_A_TIME * kib(limits.body_bytes) as usize)) }
    }

    async fn read(&self, body: Body) -> Result<Bytes, ApiError> {
        let ClientLimits { body_bytes, header_time, .. } = self.limits;
        let announced = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
        if announced.is_some_and(|bytes| bytes > body_bytes) {
            return Err(ApiError::too_long(body_bytes));
        }
        let most = announced.unwrap_or(body_bytes);
        let time = header_time + Duration::from_secs((most / SLOWEST) as u64);
        let read = self.within(body, most);
        tokio::time::timeout(time, read).await.map_err(|_| ApiError::too_slow(time.as_secs()))?
    }

    /// The bytes of a body, if they are no more than it may have. One that is `most` long may wait for others when it turns out not to
    /// be small.
    async fn within(&self, mut body: Body, most: usize) -> Result<Bytes, ApiError> {
        let (mut bytes, mut memory) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::invalid(format!("the body cannot be read: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > self.limits.body_bytes {
                return Err(ApiError::too_long(self.limits.body_bytes));
            }
            if length > SMALL_BYTES && memory.is_none() {
                memory = Some(self.memory.acquire_many(kib(most)).await.expect("nobody closes it"));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.into())
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX >> 4)
}

/// Hands requests on when their bodies are here.
pub async fn whole(State(bodies): State<Bodies>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(head, body)).await;
    }
    match bodies.read(body).await {
        Ok(bytes) => next.run(Request::from_parts(head, Body::from(bytes))).await,
        Err(error) => error.into_response(),
    }
}
