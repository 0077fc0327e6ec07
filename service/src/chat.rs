//! `POST /v1/chat/completions`: from a body to an answer, in one piece or as a stream of events.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use tokio::sync::mpsc;
use tributary_engine::{Answered, Client, Clock, NotTaken, Sink, TextStream, Update};

use crate::error::ApiError;
use crate::input::ChatRequest;
use crate::output::Frame;
use crate::routes::Shared;

/// Updates of a request that its client has not read yet. A client that is slower is cut.
const BUFFERED: usize = 1024;

/// How often a silent stream says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A request that is being answered. It is cancelled when this goes, unless it is over.
struct Running {
    client: Client,
    request: u64,
    updates: mpsc::Receiver<Update>,
    is_over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            self.client.cancel(self.request);
        }
    }
}

struct Channel(mpsc::Sender<Update>);

impl Sink for Channel {
    fn take(&mut self, update: Update) -> Result<(), NotTaken> {
        self.0.try_send(update).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotTaken::Full,
            mpsc::error::TrySendError::Closed(_) => NotTaken::Gone,
        })
    }
}

/// Answers a chat completion request.
pub async fn completions(
    State(shared): State<Shared>,
    body: Result<Json<ChatRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    // The clock of the time to first token starts when the request is here.
    let clock = Clock::start();
    let outcome = accept(&shared, body, clock).await;
    let (request, running) = outcome.inspect_err(|error| shared.metrics.refused(error))?;
    let frame = Frame::new(running.request, &shared.model);
    if request.streams() {
        let answer = Answering::new(shared, running, frame, request.includes_usage());
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
        return Ok(Sse::new(events(answer)).keep_alive(keep_alive).into_response());
    }
    let (text, answered) = whole(&shared, running).await.inspect_err(|error| shared.metrics.refused(error))?;
    Ok(Json(frame.completion(&text, finish_reason(&shared.client, &answered), &answered)).into_response())
}

async fn accept(
    shared: &Shared,
    body: Result<Json<ChatRequest>, JsonRejection>,
    clock: Clock,
) -> Result<(ChatRequest, Running), ApiError> {
    let Json(request) = body.map_err(|error| ApiError::invalid(error.body_text()).with_status(error.status()))?;
    request.check()?;
    if let Some(model) = request.model.as_ref().filter(|model| **model != *shared.model) {
        let message = format!("the model `{model}` is not served here; it is `{}`", shared.model);
        return Err(ApiError::parameter("model", message).with_status(axum::http::StatusCode::NOT_FOUND));
    }
    let settings = request.settings(shared.client.settings())?;
    let (conversation, client) = (request.conversation()?, shared.client.clone());
    // Tokenisation computes: it goes to a thread that may.
    let prepared = tokio::task::spawn_blocking(move || client.prepare(&conversation)).await;
    let prepared = prepared.map_err(|error| ApiError::internal(format!("a bug: {error}")))??;
    let (sender, updates) = mpsc::channel(BUFFERED);
    let number = shared.client.submit(prepared, settings, clock, Box::new(Channel(sender)))?;
    Ok((request, Running { client: shared.client.clone(), request: number, updates, is_over: false }))
}

/// Waits for the whole answer.
async fn whole(shared: &Shared, mut running: Running) -> Result<(String, Answered), ApiError> {
    loop {
        match running.updates.recv().await {
            Some(Update::FirstToken(..) | Update::Token(_)) => {}
            Some(Update::Done(done)) => {
                running.is_over = true;
                let answered = shared.client.answered(*done)?;
                shared.metrics.answered(&answered);
                return Ok((answered.report.answer.clone(), answered));
            }
            Some(Update::Failed(failure)) => {
                running.is_over = true;
                return Err(failure.into());
            }
            None => return Err(ApiError::internal("the request was cut")),
        }
    }
}

/// A stream on its way.
struct Answering {
    shared: Shared,
    running: Running,
    frame: Frame,
    includes_usage: bool,
    text: TextStream,
    /// What is to be sent before the next update is waited for, the first at the end.
    ready: Vec<String>,
    is_done: bool,
}

impl Answering {
    fn new(shared: Shared, running: Running, frame: Frame, includes_usage: bool) -> Self {
        let (text, ready) = (shared.client.text_stream(), vec![frame.opening().to_string()]);
        Self { shared, running, frame, includes_usage, text, ready, is_done: false }
    }

    /// The next message of the stream; none behind the last.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(message) = self.ready.pop() {
                return Some(message);
            }
            if self.is_done {
                return None;
            }
            let update = self.running.updates.recv().await;
            self.take(update);
        }
    }

    fn take(&mut self, update: Option<Update>) {
        let messages = match update {
            Some(Update::FirstToken(drawn, _) | Update::Token(drawn)) => match self.text.push(drawn.token) {
                Ok(text) if text.is_empty() => Vec::new(),
                Ok(text) => vec![self.frame.text(&text).to_string()],
                Err(error) => self.failed(&error.into()),
            },
            Some(Update::Done(done)) => {
                self.is_over();
                match self.shared.client.answered(*done) {
                    Ok(answered) => self.closing(&answered),
                    Err(error) => self.failed(&error.into()),
                }
            }
            Some(Update::Failed(failure)) => {
                self.is_over();
                self.failed(&failure.into())
            }
            None => self.failed(&ApiError::internal("the request was cut")),
        };
        self.ready = messages;
        self.ready.reverse();
    }

    fn is_over(&mut self) {
        self.running.is_over = true;
        self.is_done = true;
    }

    fn closing(&mut self, answered: &Answered) -> Vec<String> {
        self.shared.metrics.answered(answered);
        let mut messages = Vec::new();
        let rest = self.text.rest();
        if !rest.is_empty() {
            messages.push(self.frame.text(&rest).to_string());
        }
        messages.push(self.frame.closing(finish_reason(&self.shared.client, answered), answered).to_string());
        if self.includes_usage {
            messages.push(self.frame.usage(answered).to_string());
        }
        messages.push("[DONE]".to_owned());
        messages
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        self.is_done = true;
        self.shared.metrics.refused(error);
        vec![error.body().to_string()]
    }
}

fn events(answering: Answering) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(answering, |mut answering| async move {
        let message = answering.next().await?;
        Some((Ok(Event::default().data(message)), answering))
    })
}

/// Why an answer ended.
fn finish_reason(client: &Client, answered: &Answered) -> &'static str {
    let ended = answered.answer.outcome.tokens.last().is_some_and(|&token| client.is_end(token));
    if ended { "stop" } else { "length" }
}
