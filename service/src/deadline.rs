//! Deadlines of requests: the end of the request's own time, or of the time to drain of an ending
//! service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::metrics::Metrics;

/// Ends requests.
#[derive(Clone)]
pub struct Deadlines {
    /// Longest time of a request.
    pub request_time: Duration,
    /// Turns true when a service that ends waits no longer.
    pub cut: watch::Receiver<bool>,
    /// Metrics that count ended streams.
    pub metrics: Arc<Metrics>,
}

/// Whether the service has ended a request. Its handler is dropped then, as when its client leaves,
/// and this flag tells the two apart. It travels with the request, as an extension.
#[derive(Debug, Clone, Default)]
pub struct TimeUp(Arc<AtomicBool>);

impl TimeUp {
    /// Whether it has.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The time of one request.
struct Term {
    deadlines: Deadlines,
    began: Instant,
    time_up: TimeUp,
}

impl Term {
    /// Ends with the reason when the request must end.
    async fn passed(&mut self) -> ApiError {
        let time = self.deadlines.request_time;
        let error = tokio::select! {
            () = tokio::time::sleep_until(self.began + time) => ApiError::timed_out(time.as_secs()),
            () = cut(&mut self.deadlines.cut) => {
                ApiError::unavailable("the service ends, and its time to answer what it has begun is over")
            }
        };
        self.time_up.0.store(true, Ordering::Release);
        error
    }
}

async fn cut(cut: &mut watch::Receiver<bool>) {
    if cut.wait_for(|cut| *cut).await.is_err() {
        // The service is gone, so no cut can come.
        std::future::pending::<()>().await;
    }
}

/// Answers requests within their time. After that the request's resources are dropped; a stream
/// that has begun ends with the error as its last event.
pub async fn within(State(deadlines): State<Deadlines>, mut request: Request, next: Next) -> Response {
    let mut term = Term { deadlines, began: Instant::now(), time_up: TimeUp::default() };
    request.extensions_mut().insert(term.time_up.clone());
    let response = tokio::select! {
        response = next.run(request) => response,
        error = term.passed() => return error.into_response(),
    };
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        return response;
    }
    response.map(|body| {
        let parts = stream::unfold(Some((body.into_data_stream(), term)), move |state| async move {
            let (mut parts, mut term) = state?;
            tokio::select! {
                part = parts.next() => part.map(|part| (part, Some((parts, term)))),
                error = term.passed() => {
                    term.deadlines.metrics.refused(error.kind);
                    let event = Bytes::from(format!("data: {}\n\n", error.body()));
                    Some((Ok(event), None))
                }
            }
        });
        Body::from_stream(parts)
    })
}
