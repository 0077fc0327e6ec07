//! `POST /v1/chat/completions` and `POST /v1/completions`.

use axum::extract::State;
use axum::response::Response;
use tributary_engine::Work;

use crate::arrival::Arrival;
use crate::delivery::Delivery;
use crate::error::ApiError;
use crate::input::Completed;
use crate::output::Frame;
use crate::respond::respond;
use crate::running::Running;
use crate::shared::Shared;

/// Answers a request with a text, or several.
pub async fn complete<R: Completed>(State(shared): State<Shared>, arrival: Arrival) -> Result<Response, ApiError> {
    let (all, request) = Running::begin::<R>(&shared, arrival, Work::Answer).await?;
    let first = all.first().ok_or_else(|| ApiError::internal("a bug: nothing was handed in"))?;
    let frame = Frame::new(R::FORM, first.request, &shared.model);
    let sampling = &request.generation().sampling();
    let delivery = Delivery { ends: shared.client.ends(sampling), ..request.generation().delivery.clone() };
    let echo = |index: usize| delivery.echoes.then(|| request.echoed_text(index).map(str::to_owned));
    let echoed = all.iter().map(|running| echo(running.prompt.index)).collect();
    respond(all, echoed, frame, delivery).await
}
