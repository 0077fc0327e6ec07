//! From a request that is under way to its answer, in one piece or as a stream of events; the same for chats and for texts.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use tributary_engine::{Answered, Client, Update};

use crate::delivery::Delivery;
use crate::error::ApiError;
use crate::output::{Ending, Frame};
use crate::running::Running;
use crate::spoken::{Piece, Spoken};

/// How often a silent stream says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// How long a stream waits for its first token before it begins without: what is wrong with a request is mostly known by then,
/// and is best told by the status of the response.
const OPENING: Duration = Duration::from_secs(1);

/// What happens next to an answer.
enum Step {
    /// Nothing that its client hears of.
    Nothing,
    /// More of it.
    Piece(Piece),
    /// Its end, perhaps with the last of it.
    End(Option<Piece>, Box<Ended>),
}

/// An answer that has ended.
struct Ended {
    reason: &'static str,
    /// Tokens of it, without those that were drawn behind a stop text.
    tokens: usize,
    answered: Answered,
}

/// An answer on its way.
struct Answering {
    running: Running,
    spoken: Spoken,
}

/// Answers a request.
///
/// # Errors
/// What is known before the answer begins.
pub async fn respond(running: Running, frame: Frame, delivery: Delivery) -> Result<Response, ApiError> {
    running.shared.metrics.named(running.request, frame.id());
    let spoken = Spoken::new(&running.shared.client, delivery.stops.clone());
    let mut answering = Answering { running, spoken };
    if !delivery.streams {
        return answering.whole(&frame, &delivery).await;
    }
    let mut streaming =
        Streaming { answering, ready: VecDeque::from([frame.opening()]), frame, delivery, is_done: false };
    streaming.ready.retain(|message| !message.is_empty());
    // Waiting for a step may be given up: nothing of it is lost.
    if let Ok(first) = tokio::time::timeout(OPENING, streaming.answering.next()).await {
        streaming.take(first?);
    }
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    Ok(Sse::new(events(streaming)).keep_alive(keep_alive).into_response())
}

impl Answering {
    /// Waits for the next step.
    async fn next(&mut self) -> Result<Step, ApiError> {
        let update = self.running.next().await;
        let step = update.and_then(|update| self.take(update));
        step.inspect_err(|_| self.running.failed())
    }

    fn take(&mut self, update: Update) -> Result<Step, ApiError> {
        match update {
            Update::FirstToken(drawn, _) | Update::Token(drawn) => {
                let was_stopped = self.spoken.is_stopped;
                let piece = self.spoken.push(&drawn)?;
                if self.spoken.is_stopped && !was_stopped {
                    // The ranks let go of it by their next order; what there is of it then comes as its end.
                    self.running.shared.client.desk().end(self.running.request);
                }
                Ok(piece.map_or(Step::Nothing, Step::Piece))
            }
            Update::Done(done) => {
                let client = self.running.shared.client.clone();
                let answered = client.answered(*done)?;
                let rest = self.spoken.rest();
                let reason = if self.spoken.is_stopped { "stop" } else { finish_reason(&client, &answered) };
                self.running.answered(&answered);
                Ok(Step::End(rest, Box::new(Ended { reason, tokens: self.spoken.tokens, answered })))
            }
            Update::Kept(_) => Err(ApiError::internal("a bug: an answer was due, and chunks came")),
            Update::Failed(failure) => Err(failure.into()),
        }
    }

    /// The answer in one piece.
    async fn whole(&mut self, frame: &Frame, delivery: &Delivery) -> Result<Response, ApiError> {
        let mut whole = Piece::default();
        loop {
            let (piece, ended) = match self.next().await? {
                Step::Nothing => continue,
                Step::Piece(piece) => (Some(piece), None),
                Step::End(piece, ended) => (piece, Some(ended)),
            };
            if let Some(Piece { text, tokens }) = piece {
                whole.text += &text;
                whole.tokens.extend(tokens);
            }
            if let Some(ended) = ended {
                let text = computed(delivery, || {
                    Ok::<_, ApiError>(frame.whole(&whole, delivery, &self.ending(&ended, delivery)?))
                })?;
                return Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response());
            }
        }
    }

    fn ending<'a>(&self, ended: &'a Ended, delivery: &Delivery) -> Result<Ending<'a>, ApiError> {
        let Ended { reason, tokens, answered } = ended;
        Ok(Ending::new(reason, *tokens, answered, delivery.explains.then_some(&self.running.shared.client))?)
    }
}

/// Makes the end of an answer. One that explains itself has a line for every token of the context: what the thread had to do besides
/// goes to another meanwhile.
fn computed<T>(delivery: &Delivery, make: impl FnOnce() -> T) -> T {
    if delivery.explains { tokio::task::block_in_place(make) } else { make() }
}

/// Why an answer ended that no stop text did.
fn finish_reason(client: &Client, answered: &Answered) -> &'static str {
    let ended = answered.answer.outcome.tokens.last().is_some_and(|&token| client.is_end(token));
    if ended { "stop" } else { "length" }
}

/// An answer as events.
struct Streaming {
    answering: Answering,
    frame: Frame,
    delivery: Delivery,
    /// What is to be sent before the next step is waited for.
    ready: VecDeque<String>,
    is_done: bool,
}

impl Streaming {
    /// The next message of the stream; none behind the last.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            if self.is_done {
                return None;
            }
            match self.answering.next().await {
                Ok(step) => self.take(step),
                Err(error) => self.fail(&error),
            }
        }
    }

    fn take(&mut self, step: Step) {
        let (piece, ended) = match step {
            Step::Nothing => (None, None),
            Step::Piece(piece) => (Some(piece), None),
            Step::End(piece, ended) => (piece, Some(ended)),
        };
        self.ready.extend(piece.map(|piece| self.frame.piece(&piece, &self.delivery)));
        let Some(ended) = ended else { return };
        self.is_done = true;
        let Self { answering, frame, delivery, .. } = self;
        let last = computed(delivery, || {
            let ending = answering.ending(&ended, delivery)?;
            let usage = delivery.includes_usage.then(|| frame.usage(&ending));
            Ok::<_, ApiError>(std::iter::once(frame.closing(&ending)).chain(usage))
        });
        match last {
            Ok(last) => self.ready.extend(last.chain(["[DONE]".to_owned()])),
            Err(error) => self.fail(&error),
        }
    }

    /// An error ends the stream as its last event, and `[DONE]` does not follow.
    fn fail(&mut self, error: &ApiError) {
        self.is_done = true;
        self.answering.running.shared.metrics.refused(error.kind);
        self.ready.push_back(error.body().to_string());
    }
}

fn events(streaming: Streaming) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(streaming, |mut streaming| async move {
        let message = streaming.next().await?;
        Some((Ok(Event::default().data(message)), streaming))
    })
}
