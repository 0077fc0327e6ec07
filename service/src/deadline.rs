//! How long a request may take: until its own time is over, or that of a service that has been told to end.

use std::sync::Arc;
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
    /// How long a request may take.
    pub request_time: Duration,
    /// Turns true when a service that ends waits no longer.
    pub cut: watch::Receiver<bool>,
    /// Where ended requests are counted.
    pub metrics: Arc<Metrics>,
}

impl Deadlines {
    /// Ends with the reason when the request that began then must end.
    async fn passed(&mut self, began: Instant) -> ApiError {
        let time = self.request_time;
        let error = tokio::select! {
            () = tokio::time::sleep_until(began + time) => ApiError::timed_out(time.as_secs()),
            () = cut(&mut self.cut) => {
                ApiError::unavailable("the service ends, and its time to answer what it has begun is over")
            }
        };
        self.metrics.refused(&error);
        error
    }
}

async fn cut(cut: &mut watch::Receiver<bool>) {
    if cut.wait_for(|cut| *cut).await.is_err() {
        // The service is gone, and with it whoever could cut.
        std::future::pending::<()>().await;
    }
}

/// Answers requests within their time. What they hold is let go of when it is over; a stream that has begun ends with the error as
/// its last event.
pub async fn within(State(mut deadlines): State<Deadlines>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let response = tokio::select! {
        response = next.run(request) => response,
        error = deadlines.passed(began) => return error.into_response(),
    };
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        return response;
    }
    response.map(|body| {
        let parts = stream::unfold(Some((body.into_data_stream(), deadlines)), move |state| async move {
            let (mut parts, mut deadlines) = state?;
            tokio::select! {
                part = parts.next() => part.map(|part| (part, Some((parts, deadlines)))),
                error = deadlines.passed(began) => {
                    let event = Bytes::from(format!("data: {}\n\n", error.body()));
                    Some((Ok(event), None))
                }
            }
        });
        Body::from_stream(parts)
    })
}
