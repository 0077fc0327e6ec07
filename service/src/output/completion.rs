//! Text completions and their parts, which have one form.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Ending, Explanation, Frame, Metrics, Usage, text_of};
use crate::delivery::Delivery;
use crate::spoken::Piece;

/// An answer, or a part of a streamed one.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct TextCompletion<'a> {
    /// Names the answer; the same in all its parts.
    id: &'a str,
    /// `text_completion`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The model.
    model: &'a str,
    /// The answer, or what is new of it; nothing in the part that tells the usage.
    #[cfg_attr(test, schema(max_items = 1))]
    choices: Vec<TextChoice<'a>>,
    /// How many tokens there were: in a whole answer, and behind the end of a stream where it was asked for.
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

/// A text.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct TextChoice<'a> {
    /// 0.
    index: usize,
    /// The text.
    text: &'a str,
    /// Log-probabilities; where they were asked for.
    logprobs: Option<TextLogprobs<'a>>,
    /// `stop` (an end token or a stop text) or `length`; null until the end of a stream.
    finish_reason: Option<&'a str>,
}

/// Log-probabilities of a text, token by token.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct TextLogprobs<'a> {
    /// The tokens' texts.
    tokens: Vec<&'a str>,
    /// Natural logarithms of their probabilities, by the logits as they are.
    token_logprobs: Vec<f32>,
    /// The likeliest texts in the place of each token.
    #[cfg_attr(test, schema(value_type = Vec<BTreeMap<String, f32>>))]
    top_logprobs: Vec<BTreeMap<&'a str, f32>>,
    /// Characters of the answer before each token.
    text_offset: Vec<usize>,
}

pub fn whole(frame: &Frame, piece: &Piece, delivery: &Delivery, ending: &Ending<'_>) -> String {
    let choice = choice(&piece.text, logprobs(piece, delivery), Some(ending.reason));
    let (usage, metrics, tributary) = (Some(&ending.usage), Some(&ending.metrics), ending.explanation.as_ref());
    let whole = TextCompletion { usage, metrics, tributary, ..part(frame, Some(choice)) };
    text_of(&whole)
}

pub fn piece(frame: &Frame, piece: &Piece, delivery: &Delivery) -> String {
    text_of(&part(frame, Some(choice(&piece.text, logprobs(piece, delivery), None))))
}

pub fn closing(frame: &Frame, ending: &Ending<'_>) -> String {
    let (metrics, tributary) = (Some(&ending.metrics), ending.explanation.as_ref());
    text_of(&TextCompletion { metrics, tributary, ..part(frame, Some(choice("", None, Some(ending.reason)))) })
}

pub fn usage(frame: &Frame, ending: &Ending<'_>) -> String {
    text_of(&TextCompletion { usage: Some(&ending.usage), ..part(frame, None) })
}

fn choice<'a>(text: &'a str, logprobs: Option<TextLogprobs<'a>>, finish_reason: Option<&'a str>) -> TextChoice<'a> {
    TextChoice { index: 0, text, logprobs, finish_reason }
}

fn part<'a>(frame: &'a Frame, choice: Option<TextChoice<'a>>) -> TextCompletion<'a> {
    let Frame { id, created, model, .. } = frame;
    let (object, choices) = ("text_completion", choice.into_iter().collect());
    TextCompletion { id, object, created: *created, model, choices, usage: None, metrics: None, tributary: None }
}

fn logprobs<'a>(piece: &'a Piece, delivery: &Delivery) -> Option<TextLogprobs<'a>> {
    let tokens = &piece.tokens;
    // Two tokens may have one text: the likelier stands.
    let top = |top: &'a Vec<(String, f32)>| top.iter().rev().map(|(text, logprob)| (text.as_str(), *logprob)).collect();
    delivery.has_logprobs.then(|| TextLogprobs {
        tokens: tokens.iter().map(|token| token.text.as_str()).collect(),
        token_logprobs: tokens.iter().map(|token| token.logprob).collect(),
        top_logprobs: tokens.iter().map(|token| top(&token.top)).collect(),
        text_offset: tokens.iter().map(|token| token.offset).collect(),
    })
}
