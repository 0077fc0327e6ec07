//! Chat completions and their parts.

use serde::Serialize;

use super::{Ending, Explanation, Frame, Metrics, Usage, text_of};
use crate::delivery::Delivery;
use crate::spoken::{LikelyToken, Piece};

/// A whole answer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChatCompletion<'a> {
    /// Names the answer.
    id: &'a str,
    /// `chat.completion`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The model.
    model: &'a str,
    /// The answer: there is one.
    #[cfg_attr(test, schema(min_items = 1, max_items = 1))]
    choices: Vec<ChatChoice<'a>>,
    /// How many tokens there were.
    usage: &'a Usage,
    /// What it cost.
    metrics: &'a Metrics<'a>,
    /// What was recomputed; where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    tributary: Option<&'a Explanation<'a>>,
}

/// An answer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChatChoice<'a> {
    /// 0.
    index: usize,
    /// The message.
    message: ChatMessage<'a>,
    /// Log-probabilities; where they were asked for.
    logprobs: Option<ChatLogprobs<'a>>,
    /// `stop` (an end token or a stop text) or `length`.
    finish_reason: &'a str,
}

/// The model's message.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChatMessage<'a> {
    /// `assistant`.
    role: &'static str,
    /// The text.
    content: &'a str,
    /// Never there: the model's words are its content.
    refusal: Option<&'a str>,
}

/// Log-probabilities of a text.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChatLogprobs<'a> {
    /// Its tokens, one after the other.
    content: Vec<ChatLogprob<'a>>,
    /// Never there.
    refusal: Option<&'a str>,
}

/// A token and how likely it was.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChatLogprob<'a> {
    /// Its text.
    token: &'a str,
    /// Natural logarithm of its probability, by the logits as they are.
    logprob: f32,
    /// Its text's bytes; null for a part of a character.
    bytes: Option<&'a [u8]>,
    /// The likeliest tokens in its place, the best first.
    top_logprobs: Vec<TopLogprob<'a>>,
}

/// A token that was likely.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct TopLogprob<'a> {
    /// Its text.
    token: &'a str,
    /// Natural logarithm of its probability, by the logits as they are.
    logprob: f32,
    /// Its text's bytes; null for a part of a character.
    bytes: Option<&'a [u8]>,
}

/// A part of a streamed answer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChatPart<'a> {
    /// Names the answer; the same in all its parts.
    id: &'a str,
    /// `chat.completion.chunk`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The model.
    model: &'a str,
    /// What is new; nothing in the part that tells the usage.
    #[cfg_attr(test, schema(max_items = 1))]
    choices: Vec<PartChoice<'a>>,
    /// How many tokens there were: behind the end, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    usage: Option<&'a Usage>,
    /// What the answer cost: beside the finish reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    metrics: Option<&'a Metrics<'a>>,
    /// What was recomputed: beside the finish reason, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    tributary: Option<&'a Explanation<'a>>,
}

/// What is new in a part.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartChoice<'a> {
    /// 0.
    index: usize,
    /// The new text.
    delta: Delta<'a>,
    /// Log-probabilities of the new text; where they were asked for.
    logprobs: Option<ChatLogprobs<'a>>,
    /// Why the answer ended; null until then.
    finish_reason: Option<&'a str>,
}

/// New text of the model's message.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Delta<'a> {
    /// `assistant`, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    role: Option<&'static str>,
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    content: Option<&'a str>,
}

pub fn whole(frame: &Frame, piece: &Piece, delivery: &Delivery, ending: &Ending<'_>) -> String {
    let Frame { id, created, model, .. } = frame;
    let Ending { reason, usage, metrics, explanation } = ending;
    let message = ChatMessage { role: "assistant", content: &piece.text, refusal: None };
    let choice = ChatChoice { index: 0, message, logprobs: logprobs(piece, delivery), finish_reason: reason };
    let (object, choices, tributary) = ("chat.completion", vec![choice], explanation.as_ref());
    let whole = ChatCompletion { id, object, created: *created, model, choices, usage, metrics, tributary };
    text_of(&whole)
}

pub fn opening(frame: &Frame) -> String {
    let delta = Delta { role: Some("assistant"), content: Some("") };
    text_of(&part(frame, Some(PartChoice { index: 0, delta, logprobs: None, finish_reason: None })))
}

pub fn piece(frame: &Frame, piece: &Piece, delivery: &Delivery) -> String {
    let (delta, logprobs) = (Delta { role: None, content: Some(&piece.text) }, logprobs(piece, delivery));
    text_of(&part(frame, Some(PartChoice { index: 0, delta, logprobs, finish_reason: None })))
}

pub fn closing(frame: &Frame, ending: &Ending<'_>) -> String {
    let finish_reason = Some(ending.reason);
    let choice = PartChoice { index: 0, delta: Delta::default(), logprobs: None, finish_reason };
    let (metrics, tributary) = (Some(&ending.metrics), ending.explanation.as_ref());
    text_of(&ChatPart { metrics, tributary, ..part(frame, Some(choice)) })
}

pub fn usage(frame: &Frame, ending: &Ending<'_>) -> String {
    text_of(&ChatPart { usage: Some(&ending.usage), ..part(frame, None) })
}

fn part<'a>(frame: &'a Frame, choice: Option<PartChoice<'a>>) -> ChatPart<'a> {
    let Frame { id, created, model, .. } = frame;
    let (object, choices) = ("chat.completion.chunk", choice.into_iter().collect());
    ChatPart { id, object, created: *created, model, choices, usage: None, metrics: None, tributary: None }
}

fn logprobs<'a>(piece: &'a Piece, delivery: &Delivery) -> Option<ChatLogprobs<'a>> {
    let of = |token: &'a LikelyToken| ChatLogprob {
        token: &token.text,
        logprob: token.logprob,
        bytes: bytes(&token.text),
        top_logprobs: token.top.iter().map(top).collect(),
    };
    delivery.has_logprobs.then(|| ChatLogprobs { content: piece.tokens.iter().map(of).collect(), refusal: None })
}

fn top((token, logprob): &(String, f32)) -> TopLogprob<'_> {
    TopLogprob { token, logprob: *logprob, bytes: bytes(token) }
}

/// The bytes of a token's text; none of a part of a character, whose text stands for it and is not it.
fn bytes(text: &str) -> Option<&[u8]> {
    (!text.is_empty() && !text.contains('\u{fffd}')).then_some(text.as_bytes())
}
