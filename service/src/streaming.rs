//! Answers as server-sent events. No event with data comes before there is a token: load generators
//! take the first one for the time to first token.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};

use crate::answering::{Batch, Step, computed};
use crate::delivery::Delivery;
use crate::error::ApiError;
use crate::output::{Frame, Part, Usage};

/// Interval of a silent stream's signs of life.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Time for which the response waits for the first token before its head is sent. Most refusals are
/// known by then, and become the status of the response.
const OPENING: Duration = Duration::from_secs(1);

/// Answers as events.
struct Streaming {
    batch: Batch,
    frame: Frame,
    delivery: Delivery,
    /// Events that are to be sent before the next step is waited for.
    ready: VecDeque<Event>,
    /// Whether an answer has begun: its first token has come.
    begun: Vec<bool>,
    /// Tokens of prompts and answers that have ended.
    usage: Usage,
    /// The last prompt whose tokens have been counted.
    counted: Vec<usize>,
    is_done: bool,
}

/// Answers with a stream.
///
/// # Errors
/// Returns failures that are known before the answer begins.
pub async fn stream(batch: Batch, frame: Frame, delivery: Delivery) -> Result<Response, ApiError> {
    let begun = vec![false; batch.len()];
    let (ready, usage, counted) = (VecDeque::new(), Usage::new(0, 0, 0), Vec::new());
    let mut streaming = Streaming { batch, frame, delivery, ready, begun, usage, counted, is_done: false };
    match tokio::time::timeout(OPENING, streaming.batch.next(&streaming.delivery)).await {
        Ok(Some((index, step))) => streaming.take(index, step?)?,
        Ok(None) => return Err(ApiError::internal("a bug: an answer ended without its end")),
        // A comment: it opens the response, and no client takes it for a token.
        Err(_) => streaming.ready.push_back(Event::default().comment("prefill")),
    }
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    Ok(Sse::new(events(streaming)).keep_alive(keep_alive).into_response())
}

impl Streaming {
    /// The next event of the stream; none after the last.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_done {
                return None;
            }
            let taken = match self.batch.next(&self.delivery).await {
                Some((index, step)) => step.and_then(|step| self.take(index, step)),
                None => {
                    self.end();
                    Ok(())
                }
            };
            if let Err(error) = taken {
                self.fail(&error);
            }
        }
    }

    /// Takes an event of an answer.
    fn take(&mut self, index: usize, step: Step) -> Result<(), ApiError> {
        let (piece, ended) = match step {
            Step::Nothing => (None, None),
            Step::Piece(piece) => (Some(piece), None),
            Step::End(piece, ended) => (piece, Some(ended)),
        };
        let is_first = !std::mem::replace(&mut self.begun[index], true);
        let Self { batch, frame, delivery, .. } = self;
        let answering = batch.of(index);
        let usage = delivery.counts_always.then(|| answering.usage_so_far());
        let part = |is_first| Part { index, is_first, usage: usage.as_ref() };
        let mut parts = Vec::new();
        let mut opens = is_first;
        if is_first && delivery.echoes {
            parts.push(frame.piece(&answering.echo(delivery, None)?, part(true), delivery));
            opens = false;
        }
        match &piece {
            Some(piece) => parts.push(frame.piece(piece, part(opens), delivery)),
            // The first token is sent even where it completes no text.
            None if opens && ended.is_none() => parts.extend(frame.opening(part(true))),
            None => {}
        }
        if let Some(ended) = &ended {
            let ending = computed(delivery, || answering.ending(ended, delivery))?;
            let counts = answering.running.prompt.index;
            let is_new = !self.counted.contains(&counts);
            self.usage.add(&ending.usage, is_new);
            self.counted.extend(is_new.then_some(counts));
            parts.push(frame.closing(&ending, part(opens && piece.is_none())));
        }
        self.ready.extend(parts.into_iter().map(|part| Event::default().data(part)));
        Ok(())
    }

    /// All answers have ended.
    fn end(&mut self) {
        self.is_done = true;
        let usage = self.delivery.includes_usage.then(|| self.frame.usage(&self.usage));
        let last = usage.into_iter().chain(["[DONE]".to_owned()]);
        self.ready.extend(last.map(|part| Event::default().data(part)));
    }

    /// An error ends the stream as its last event, and `[DONE]` does not follow.
    fn fail(&mut self, error: &ApiError) {
        self.is_done = true;
        self.batch.refused(error);
        self.ready.push_back(Event::default().data(error.body().to_string()));
    }
}

fn events(streaming: Streaming) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(streaming, |mut streaming| async move {
        let event = streaming.next().await?;
        Some((Ok(event), streaming))
    })
}
