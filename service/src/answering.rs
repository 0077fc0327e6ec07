//! Turns engine updates into an HTTP response: one JSON body, or a stream of events; the same for
//! chats and for texts, and for one answer and several.

use std::task::{Context, Poll};

use axum::http::header;
use axum::response::{IntoResponse, Response};
use tributary_engine::{Answered, Update};

use crate::delivery::Delivery;
use crate::echo;
use crate::error::ApiError;
use crate::output::{Ending, Frame, Told, Usage};
use crate::reasoning::Parser;
use crate::running::Running;
use crate::spoken::{Piece, Spoken};

/// The next event of an answer.
pub enum Step {
    /// Another token, which completes no text.
    Nothing,
    /// More of the text.
    Piece(Piece),
    /// Its end, perhaps with the last of the text.
    End(Option<Piece>, Box<Ended>),
}

/// An answer that has ended.
pub struct Ended {
    reason: &'static str,
    /// Tokens of it, without those that were drawn after a stop text.
    tokens: usize,
    answered: Answered,
}

/// An answer on its way.
pub struct Answering {
    /// The request that it answers.
    pub running: Running,
    spoken: Spoken,
    /// Parts reasoning from the answer, where that is wanted or the answer comes in channels.
    parser: Option<Parser>,
    /// The text of its prompt, where it is repeated and came as a text.
    echoed: Option<String>,
    is_over: bool,
}

/// The answers to one request, in the order of their numbers.
pub struct Batch(Vec<Answering>);

impl Answering {
    fn poll_next(&mut self, delivery: &Delivery, cx: &mut Context<'_>) -> Poll<Result<Step, ApiError>> {
        self.running.poll_next(cx).map(|update| {
            let step = update.and_then(|update| self.take(update, delivery));
            self.is_over = matches!(step, Err(_) | Ok(Step::End(..)));
            step.inspect_err(|_| self.running.failed())
        })
    }

    fn take(&mut self, update: Update, delivery: &Delivery) -> Result<Step, ApiError> {
        match update {
            Update::FirstToken(..) | Update::Token(_) if !delivery.shows_answer => Ok(Step::Nothing),
            Update::FirstToken(drawn, _) | Update::Token(drawn) => {
                let was_stopped = self.spoken.is_stopped;
                let piece = self.spoken.push(&drawn)?;
                if self.spoken.is_stopped && !was_stopped {
                    self.running.end();
                }
                Ok(piece.and_then(|piece| self.parted(piece, delivery)).map_or(Step::Nothing, Step::Piece))
            }
            Update::Done(done) => {
                let answered = self.running.shared.client.answered(*done)?;
                let rest = self.spoken.rest();
                let rest = self.parted_at_the_end(rest, delivery);
                let last = answered.answer.outcome.tokens.last().filter(|_| delivery.shows_answer);
                let ended = self.spoken.is_stopped || last.is_some_and(|token| delivery.ends.contains(token));
                let reason = if ended { "stop" } else { "length" };
                self.running.answered(&answered);
                Ok(Step::End(rest, Box::new(Ended { reason, tokens: self.spoken.tokens, answered })))
            }
            Update::Begun(_) => Ok(Step::Nothing),
            Update::Kept(_) => Err(ApiError::internal("a bug: an answer was due, and chunks came")),
            Update::Failed(failure) => Err(failure.into()),
        }
    }

    /// A piece with its reasoning apart, where that is wanted; none where all of it is held back.
    fn parted(&mut self, piece: Piece, delivery: &Delivery) -> Option<Piece> {
        let Some(parser) = &mut self.parser else { return Some(piece) };
        let (reasoning, text) = parser.push(&piece.text);
        let reasoning = if delivery.reasoning.is_left_out { String::new() } else { reasoning };
        let says = !(reasoning.is_empty() && text.is_empty() && piece.tokens.is_empty());
        says.then_some(Piece { text, reasoning, ..piece })
    }

    /// The last piece, with the held-back text.
    fn parted_at_the_end(&mut self, rest: Option<Piece>, delivery: &Delivery) -> Option<Piece> {
        let rest = rest.and_then(|piece| self.parted(piece, delivery));
        let Some(parser) = &mut self.parser else { return rest };
        let (reasoning, text) = parser.rest();
        let mut piece = rest.unwrap_or_default();
        piece.text += &text;
        if !delivery.reasoning.is_left_out {
            piece.reasoning += &reasoning;
        }
        (piece != Piece::default()).then_some(piece)
    }

    /// The prompt as an answer repeats it, with log-probabilities once the answer has ended.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn echo(&self, delivery: &Delivery, ended: Option<&Ended>) -> Result<Piece, ApiError> {
        let scored =
            ended.and_then(|ended| ended.answered.answer.outcome.prompt.as_ref()).map(|query| query.0.as_slice());
        let asked = scored.filter(|_| delivery.has_logprobs);
        Ok(echo::piece(&self.running.shared.client, &self.running.prompt, self.echoed.as_deref(), asked)?)
    }

    /// The last part of the answer.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn ending<'a>(&self, ended: &'a Ended, delivery: &Delivery) -> Result<Ending<'a>, ApiError> {
        let Ended { reason, tokens, answered } = ended;
        let client = &self.running.shared.client;
        let mut ending = Ending::new(reason, *tokens, answered, delivery.explains.then_some(client))?;
        if let Some(scored) = answered.answer.outcome.prompt.as_ref().filter(|_| delivery.tells_prompt) {
            ending.prompt = Some(echo::logprobs(client, &self.running.prompt, &scored.0)?);
        }
        Ok(ending)
    }

    /// Tokens so far: of the prompt, and of the answer.
    pub fn usage_so_far(&self) -> Usage {
        let prompt = &self.running.prompt;
        Usage::new(prompt.tokens, 0, self.spoken.tokens).with_images(prompt.picture_tokens)
    }
}

impl Batch {
    /// The answers to one request begin; `echoed` are the texts of their prompts, where they are
    /// repeated and are known.
    ///
    /// # Errors
    /// Returns an error if the prompt cannot be echoed.
    pub fn begin(
        all: Vec<Running>,
        echoed: Vec<Option<Option<String>>>,
        frame: &Frame,
        delivery: &Delivery,
    ) -> Result<Self, ApiError> {
        assert_eq!(all.len(), echoed.len(), "answers and their prompts");
        let begin = |(running, echoed): (Running, Option<Option<String>>)| {
            let (client, metrics) = (&running.shared.client, &running.shared.metrics);
            metrics.named(running.request, frame.id());
            let repeated = echoed
                .map(|text| Ok::<_, ApiError>((echo::piece(client, &running.prompt, text.as_deref(), None)?, text)));
            let (piece, echoed) = repeated.transpose()?.unwrap_or_default();
            let end = &running.prompt.end;
            // A text continues its prompt; a message begins anew, without the space between words.
            let after = if frame.is_chat() { &[][..] } else { end };
            let parts = frame.is_chat().then(|| running.shared.reasoning.begin(delivery.reasoning, end, client));
            let (headers, parser) = parts.unwrap_or_default();
            let spoken = Spoken::new(client, after, delivery, piece.text.chars().count()).without(headers);
            Ok(Answering { running, spoken, parser, echoed, is_over: false })
        };
        Ok(Self(all.into_iter().zip(echoed).map(begin).collect::<Result<_, ApiError>>()?))
    }

    /// Waits for the next event of any answer, and gives its number; nothing after the end of the
    /// last. It may be given up while it waits: nothing is lost.
    pub async fn next(&mut self, delivery: &Delivery) -> Option<(usize, Result<Step, ApiError>)> {
        std::future::poll_fn(|cx| {
            let mut is_over = true;
            for (index, answering) in self.0.iter_mut().enumerate().filter(|(_, answering)| !answering.is_over) {
                is_over = false;
                if let Poll::Ready(step) = answering.poll_next(delivery, cx) {
                    return Poll::Ready(Some((index, step)));
                }
            }
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// An answer.
    pub fn of(&self, index: usize) -> &Answering {
        &self.0[index]
    }

    /// Number of answers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Counts a failure that ends a stream.
    pub fn refused(&self, error: &ApiError) {
        if let Some(first) = self.0.first() {
            first.running.shared.metrics.refused(error.kind);
        }
    }

    /// Tokens of prompts, each once, and of all answers.
    pub fn usage(&self, endings: &[&Ending<'_>]) -> Usage {
        let mut sum = Usage::new(0, 0, 0);
        let mut counted = None;
        for (answering, ending) in self.0.iter().zip(endings) {
            let index = Some(answering.running.prompt.index);
            sum.add(&ending.usage, counted != index);
            counted = index;
        }
        sum
    }

    /// The whole answers.
    pub async fn whole(mut self, frame: &Frame, delivery: &Delivery) -> Result<Response, ApiError> {
        let mut wholes: Vec<(Piece, Option<Box<Ended>>)> = (0..self.len()).map(|_| Default::default()).collect();
        while let Some((index, step)) = self.next(delivery).await {
            let (piece, ended) = match step? {
                Step::Nothing => continue,
                Step::Piece(piece) => (Some(piece), None),
                Step::End(piece, ended) => (piece, Some(ended)),
            };
            let whole = &mut wholes[index];
            piece.into_iter().for_each(|piece| whole.0.append(piece));
            whole.1 = ended.or(whole.1.take());
        }
        let text = computed(delivery, || self.told(wholes, frame, delivery))?;
        Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
    }

    fn told(
        &self,
        wholes: Vec<(Piece, Option<Box<Ended>>)>,
        frame: &Frame,
        delivery: &Delivery,
    ) -> Result<String, ApiError> {
        let (mut pieces, mut all) = (Vec::new(), Vec::new());
        for (answering, (piece, ended)) in self.0.iter().zip(wholes) {
            let ended = ended.ok_or_else(|| ApiError::internal("a bug: an answer ended without its end"))?;
            let mut whole = Piece::default();
            if delivery.echoes {
                whole = answering.echo(delivery, Some(&ended))?;
            }
            whole.append(piece);
            pieces.push(whole);
            all.push(ended);
        }
        let endings: Vec<Ending<'_>> = self
            .0
            .iter()
            .zip(&all)
            .map(|(answering, ended)| answering.ending(ended, delivery))
            .collect::<Result<_, _>>()?;
        let usage = self.usage(&endings.iter().collect::<Vec<_>>());
        let told: Vec<Told<'_>> = pieces.iter().zip(&endings).map(|(piece, ending)| Told { piece, ending }).collect();
        Ok(frame.whole(&told, &usage, delivery))
    }
}

/// Makes the end of an answer. One that explains itself has a line for every token of the context,
/// and one that scores its prompt for every token of that: other tasks of this thread continue on
/// another one meanwhile.
pub fn computed<T>(delivery: &Delivery, make: impl FnOnce() -> T) -> T {
    let is_long = delivery.explains || delivery.echoes || delivery.tells_prompt;
    if is_long { tokio::task::block_in_place(make) } else { make() }
}
