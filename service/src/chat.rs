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
use tributary_engine::{Answered, Client, Clock, NotTaken, RequestFailure, Sink, TextStream, Update};

use crate::error::ApiError;
use crate::input::ChatRequest;
use crate::metrics::Outcome;
use crate::output::Frame;
use crate::shared::Shared;

/// Updates of a request that its client has not read yet. A client that is slower is cut.
const BUFFERED: usize = 1024;

/// How often a silent stream says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// How long a stream waits for its first token before it begins without: what is wrong with a request is mostly known by then,
/// and is best told by the status of the response.
const OPENING: Duration = Duration::from_secs(1);

/// A request that is being answered. It is cancelled when this goes, unless it is over.
struct Running {
    shared: Shared,
    method: &'static str,
    request: u64,
    updates: mpsc::Receiver<Update>,
    is_over: bool,
}

impl Running {
    /// The whole answer is there.
    fn answered(&mut self, answered: &Answered) {
        self.is_over = true;
        self.shared.metrics.answered(answered);
    }

    /// There will be no answer.
    fn failed(&mut self, error: &ApiError) {
        self.is_over = true;
        self.shared.metrics.refused(error);
        self.shared.metrics.ended(self.method, Outcome::Failed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.client.desk().cancel(self.request);
            self.shared.metrics.ended(self.method, Outcome::Cancelled);
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
    let (request, mut running) = outcome.inspect_err(|error| shared.metrics.refused(error))?;
    let frame = Frame::new(running.request, &shared.model);
    shared.metrics.named(running.request, frame.id());
    if request.streams() {
        let first = tokio::time::timeout(OPENING, running.updates.recv()).await.ok();
        if let Some(Some(Update::Failed(failure))) = first {
            let error = failure.into();
            running.failed(&error);
            return Err(error);
        }
        let answer = Answering::new(running, frame, request.includes_usage(), first);
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
        return Ok(Sse::new(events(answer)).keep_alive(keep_alive).into_response());
    }
    let outcome = whole(&shared.client, &mut running.updates).await;
    let answered = outcome.inspect_err(|error| running.failed(error))?;
    running.answered(&answered);
    Ok(Json(frame.completion(finish_reason(&shared.client, &answered), &answered)).into_response())
}

async fn accept(
    shared: &Shared,
    body: Result<Json<ChatRequest>, JsonRejection>,
    clock: Clock,
) -> Result<(ChatRequest, Running), ApiError> {
    if *shared.draining.borrow() {
        return Err(RequestFailure::Closed.into());
    }
    let Json(request) = body.map_err(|error| ApiError::from(&error))?;
    request.check()?;
    if let Some(model) = request.model.as_ref().filter(|model| **model != *shared.model) {
        return Err(ApiError::unknown_model(model, &shared.model));
    }
    let settings = request.settings(shared.client.settings())?;
    let (conversation, client) = (request.conversation()?, shared.client.clone());
    shared.limits.check_documents(conversation.documents.len())?;
    // Tokenisation computes: it goes to a thread that may.
    let prepared = tokio::task::spawn_blocking(move || client.prepare(&conversation)).await;
    let prepared = prepared.map_err(|error| ApiError::internal(format!("a bug: {error}")))??;
    shared.limits.check_prompt(&prepared)?;
    let (sender, updates) = mpsc::channel(BUFFERED);
    let method = settings.method.name;
    let number = shared.client.desk().submit(prepared, settings, clock, Box::new(Channel(sender)))?;
    Ok((request, Running { shared: shared.clone(), method, request: number, updates, is_over: false }))
}

/// Waits for the whole answer.
async fn whole(client: &Client, updates: &mut mpsc::Receiver<Update>) -> Result<Answered, ApiError> {
    loop {
        match updates.recv().await {
            Some(Update::FirstToken(..) | Update::Token(_)) => {}
            Some(Update::Done(done)) => return Ok(client.answered(*done)?),
            Some(Update::Failed(failure)) => return Err(failure.into()),
            None => return Err(cut(client)),
        }
    }
}

/// A request whose updates ended without an end.
fn cut(client: &Client) -> ApiError {
    if client.desk().is_closed() {
        return RequestFailure::Closed.into();
    }
    ApiError::internal("the request was cut: its client reads too slowly")
}

/// A stream on its way.
struct Answering {
    running: Running,
    frame: Frame,
    includes_usage: bool,
    text: TextStream,
    /// What is to be sent before the next update is waited for, the first at the end.
    ready: Vec<String>,
    is_done: bool,
}

impl Answering {
    /// The events of a request whose first update may be here already; there may also be none left.
    fn new(running: Running, frame: Frame, includes_usage: bool, first: Option<Option<Update>>) -> Self {
        let (text, opening) = (running.shared.client.text_stream(), frame.opening().to_string());
        let mut this = Self { running, frame, includes_usage, text, ready: Vec::new(), is_done: false };
        if let Some(update) = first {
            this.take(update);
        }
        this.ready.push(opening);
        this
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
            Some(Update::Done(done)) => match self.running.shared.client.answered(*done) {
                Ok(answered) => self.closing(&answered),
                Err(error) => self.failed(&error.into()),
            },
            Some(Update::Failed(failure)) => self.failed(&failure.into()),
            None => {
                let error = cut(&self.running.shared.client);
                self.failed(&error)
            }
        };
        self.ready = messages;
        self.ready.reverse();
    }

    fn closing(&mut self, answered: &Answered) -> Vec<String> {
        self.is_done = true;
        self.running.answered(answered);
        let mut messages = Vec::new();
        let rest = self.text.rest();
        if !rest.is_empty() {
            messages.push(self.frame.text(&rest).to_string());
        }
        messages.push(self.frame.closing(finish_reason(&self.running.shared.client, answered), answered).to_string());
        if self.includes_usage {
            messages.push(self.frame.usage(answered).to_string());
        }
        messages.push("[DONE]".to_owned());
        messages
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        self.is_done = true;
        // A token that is no text ends the answer early: the ranks need not go on.
        self.running.shared.client.desk().cancel(self.running.request);
        self.running.failed(error);
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
