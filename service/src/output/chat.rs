//! Chat completions and their parts.

use serde::Serialize;

use super::explanation::Explanation;
use super::measured::{Metrics, Usage};
#[cfg(test)]
use super::parts::PromptLogprob;
use super::parts::{Ending, Frame, Part, PromptLogprobs, Told, text_of};
use crate::delivery::Delivery;
use crate::spoken::{LikelyToken, Piece, TokenText};

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
    /// The answers: one, or as many as `n` says.
    #[cfg_attr(test, schema(min_items = 1))]
    choices: Vec<ChatChoice<'a>>,
    /// Numbers of tokens.
    usage: &'a Usage,
    /// Cost of the answer, the first of several.
    metrics: &'a Metrics<'a>,
    /// Log-probabilities of the prompt's tokens by their ids, null for the first; where they were
    /// asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false, value_type = Option<Vec<Option<BTreeMap<String, PromptLogprob>>>>))]
    prompt_logprobs: Option<&'a PromptLogprobs>,
    /// Recomputed tokens, where the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    tributary: Option<&'a Explanation<'a>>,
}

/// An answer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChatChoice<'a> {
    /// Its number.
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
    /// The model's reasoning before it, where reasoning comes apart from the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    reasoning_content: Option<&'a str>,
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
    /// Natural logarithm of its probability, by the unmodified logits.
    logprob: f32,
    /// Its own bytes: those of all tokens join to the text. Null for a mark.
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
    /// Natural logarithm of its probability, by the unmodified logits.
    logprob: f32,
    /// Its own bytes: those of all tokens join to the text. Null for a mark.
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
    /// New text; empty in the part that has the usage.
    #[cfg_attr(test, schema(max_items = 1))]
    choices: Vec<PartChoice<'a>>,
    /// Numbers of tokens: after the end, where the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    usage: Option<&'a Usage>,
    /// Cost of the answer: beside the finish reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    metrics: Option<&'a Metrics<'a>>,
    /// Recomputed tokens: beside the finish reason, where the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    tributary: Option<&'a Explanation<'a>>,
}

/// New text of a part.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartChoice<'a> {
    /// Its number.
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
    /// Text of the model's reasoning, where that comes apart from the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    reasoning_content: Option<&'a str>,
}

pub fn whole(frame: &Frame, answers: &[Told<'_>], usage: &Usage, delivery: &Delivery) -> String {
    let Frame { id, created, model, .. } = frame;
    let choices = answers.iter().enumerate().map(|(index, told)| whole_choice(index, told, delivery)).collect();
    let Ending { metrics, explanation, prompt, .. } = answers.first().expect("a chat has an answer").ending;
    let (object, tributary, prompt_logprobs) = ("chat.completion", explanation.as_ref(), prompt.as_ref());
    let created = *created;
    text_of(&ChatCompletion { id, object, created, model, choices, usage, metrics, prompt_logprobs, tributary })
}

fn whole_choice<'a>(index: usize, told: &Told<'a>, delivery: &Delivery) -> ChatChoice<'a> {
    let message = ChatMessage {
        role: "assistant",
        content: &told.piece.text,
        reasoning_content: reasoning(told.piece),
        refusal: None,
    };
    ChatChoice { index, message, logprobs: logprobs(told.piece, delivery), finish_reason: told.ending.reason }
}

pub fn opening(frame: &Frame, Part { index, usage, .. }: Part<'_>) -> String {
    let delta = Delta { role: Some("assistant"), content: Some(""), reasoning_content: None };
    let choice = PartChoice { index, delta, logprobs: None, finish_reason: None };
    text_of(&ChatPart { usage, ..part(frame, Some(choice)) })
}

pub fn piece(frame: &Frame, piece: &Piece, Part { index, is_first, usage }: Part<'_>, delivery: &Delivery) -> String {
    let reasoning_content = reasoning(piece);
    let content = (!piece.text.is_empty() || reasoning_content.is_none()).then_some(&*piece.text);
    let delta = Delta { role: is_first.then_some("assistant"), content, reasoning_content };
    let choice = PartChoice { index, delta, logprobs: logprobs(piece, delivery), finish_reason: None };
    text_of(&ChatPart { usage, ..part(frame, Some(choice)) })
}

pub fn closing(frame: &Frame, ending: &Ending<'_>, Part { index, is_first, usage }: Part<'_>) -> String {
    let (finish_reason, role) = (Some(ending.reason), is_first.then_some("assistant"));
    let delta = Delta { role, content: role.map(|_| ""), reasoning_content: None };
    let choice = PartChoice { index, delta, logprobs: None, finish_reason };
    let (metrics, tributary) = (Some(&ending.metrics), ending.explanation.as_ref());
    text_of(&ChatPart { usage, metrics, tributary, ..part(frame, Some(choice)) })
}

pub fn usage(frame: &Frame, usage: &Usage) -> String {
    text_of(&ChatPart { usage: Some(usage), ..part(frame, None) })
}

/// The text of the model's reasoning, where that comes apart.
fn reasoning(piece: &Piece) -> Option<&str> {
    (!piece.reasoning.is_empty()).then_some(piece.reasoning.as_str())
}

fn part<'a>(frame: &'a Frame, choice: Option<PartChoice<'a>>) -> ChatPart<'a> {
    let Frame { id, created, model, .. } = frame;
    let (object, choices) = ("chat.completion.chunk", choice.into_iter().collect());
    ChatPart { id, object, created: *created, model, choices, usage: None, metrics: None, tributary: None }
}

fn logprobs<'a>(piece: &'a Piece, delivery: &Delivery) -> Option<ChatLogprobs<'a>> {
    let of = |token: &'a LikelyToken| ChatLogprob {
        token: &token.token.text,
        logprob: token.logprob.unwrap_or_default(),
        bytes: bytes(&token.token),
        top_logprobs: token.top.iter().map(top).collect(),
    };
    delivery.has_logprobs.then(|| ChatLogprobs { content: piece.tokens.iter().map(of).collect(), refusal: None })
}

fn top((token, logprob): &(TokenText, f32)) -> TopLogprob<'_> {
    TopLogprob { token: &token.text, logprob: *logprob, bytes: bytes(token) }
}

/// The bytes of a token; none of a mark, which comes out as nothing.
fn bytes(token: &TokenText) -> Option<&[u8]> {
    (!token.bytes.is_empty()).then_some(&*token.bytes)
}
