//! The response to a request whose answers run: a stream of events, or one body.

use axum::response::Response;

use crate::answering::Batch;
use crate::delivery::Delivery;
use crate::error::ApiError;
use crate::output::Frame;
use crate::running::Running;
use crate::streaming::stream;

/// Answers a request; `echoed` are the texts of the answers' prompts, where they are repeated and
/// are known.
///
/// # Errors
/// Returns failures that are known before the answer begins.
pub async fn respond(
    all: Vec<Running>,
    echoed: Vec<Option<Option<String>>>,
    frame: Frame,
    delivery: Delivery,
) -> Result<Response, ApiError> {
    let batch = Batch::begin(all, echoed, &frame, &delivery)?;
    match delivery.streams {
        true => stream(batch, frame, delivery).await,
        false => batch.whole(&frame, &delivery).await,
    }
}
