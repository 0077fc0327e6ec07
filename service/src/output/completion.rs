//! Text completions and their parts, which have one form.

use std::collections::BTreeMap;

use serde::Serialize;

use super::explanation::Explanation;
use super::measured::{Metrics, Usage};
#[cfg(test)]
use super::parts::PromptLogprob;
use super::parts::{Ending, Frame, Part, PromptLogprobs, Told, text_of};
use crate::delivery::Delivery;
use crate::spoken::{Piece, TokenText};

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
    /// The answers, or the new text of one; empty in the part that has the usage.
    choices: Vec<TextChoice<'a>>,
    /// Numbers of tokens: in a whole answer, and after the end of a stream where the request asks
    /// for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    usage: Option<&'a Usage>,
    /// Cost of the answer, the first of several: beside the finish reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    metrics: Option<&'a Metrics<'a>>,
    /// Recomputed tokens: beside the finish reason, where the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false))]
    tributary: Option<&'a Explanation<'a>>,
}

/// A text.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct TextChoice<'a> {
    /// Its number: all answers to the first prompt, then those to the next.
    index: usize,
    /// The text.
    text: &'a str,
    /// Log-probabilities; where they were asked for.
    logprobs: Option<TextLogprobs<'a>>,
    /// `stop` (an end token or a stop text) or `length`; null until the end of a stream.
    finish_reason: Option<&'a str>,
    /// Log-probabilities of the prompt's tokens by their ids, null for the first; where they were
    /// asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(nullable = false, value_type = Option<Vec<Option<BTreeMap<String, PromptLogprob>>>>))]
    prompt_logprobs: Option<&'a PromptLogprobs>,
}

/// Log-probabilities of a text, token by token.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct TextLogprobs<'a> {
    /// The tokens' texts.
    tokens: Vec<&'a str>,
    /// Natural logarithms of their probabilities, by the unmodified logits; null for the first
    /// token of a prompt that is repeated.
    token_logprobs: Vec<Option<f32>>,
    /// The likeliest texts in the place of each token; null for the first token of a prompt that is
    /// repeated.
    #[cfg_attr(test, schema(value_type = Vec<Option<BTreeMap<String, f32>>>))]
    top_logprobs: Vec<Option<BTreeMap<&'a str, f32>>>,
    /// Characters of the text before each token.
    text_offset: Vec<usize>,
}

pub fn whole(frame: &Frame, answers: &[Told<'_>], usage: &Usage, delivery: &Delivery) -> String {
    let choices = answers.iter().enumerate().map(|(index, told)| whole_choice(index, told, delivery)).collect();
    let first = answers.first().map(|told| told.ending);
    let (metrics, tributary) =
        (first.map(|ending| &ending.metrics), first.and_then(|ending| ending.explanation.as_ref()));
    text_of(&TextCompletion { usage: Some(usage), metrics, tributary, ..part(frame, choices) })
}

fn whole_choice<'a>(index: usize, told: &Told<'a>, delivery: &Delivery) -> TextChoice<'a> {
    let (piece, ending) = (told.piece, told.ending);
    TextChoice {
        index,
        text: &piece.text,
        logprobs: logprobs(piece, delivery),
        finish_reason: Some(ending.reason),
        prompt_logprobs: ending.prompt.as_ref(),
    }
}

pub fn piece(frame: &Frame, piece: &Piece, Part { index, usage, .. }: Part<'_>, delivery: &Delivery) -> String {
    let choice = choice(index, &piece.text, logprobs(piece, delivery), None);
    text_of(&TextCompletion { usage, ..part(frame, vec![choice]) })
}

pub fn closing(frame: &Frame, ending: &Ending<'_>, Part { index, usage, .. }: Part<'_>) -> String {
    let (metrics, tributary) = (Some(&ending.metrics), ending.explanation.as_ref());
    let choice = choice(index, "", None, Some(ending.reason));
    text_of(&TextCompletion { usage, metrics, tributary, ..part(frame, vec![choice]) })
}

pub fn usage(frame: &Frame, usage: &Usage) -> String {
    text_of(&TextCompletion { usage: Some(usage), ..part(frame, Vec::new()) })
}

fn choice<'a>(
    index: usize,
    text: &'a str,
    logprobs: Option<TextLogprobs<'a>>,
    finish_reason: Option<&'a str>,
) -> TextChoice<'a> {
    TextChoice { index, text, logprobs, finish_reason, prompt_logprobs: None }
}

fn part<'a>(frame: &'a Frame, choices: Vec<TextChoice<'a>>) -> TextCompletion<'a> {
    let Frame { id, created, model, .. } = frame;
    let object = "text_completion";
    TextCompletion { id, object, created: *created, model, choices, usage: None, metrics: None, tributary: None }
}

fn logprobs<'a>(piece: &'a Piece, delivery: &Delivery) -> Option<TextLogprobs<'a>> {
    let tokens = &piece.tokens;
    // Two tokens may have one text: the likelier one counts.
    let top = |top: &'a Vec<(TokenText, f32)>| {
        top.iter().rev().map(|(token, logprob)| (token.text.as_str(), *logprob)).collect()
    };
    delivery.has_logprobs.then(|| TextLogprobs {
        tokens: tokens.iter().map(|token| token.token.text.as_str()).collect(),
        token_logprobs: tokens.iter().map(|token| token.logprob).collect(),
        top_logprobs: tokens.iter().map(|token| token.logprob.map(|_| top(&token.top))).collect(),
        text_offset: tokens.iter().map(|token| token.offset).collect(),
    })
}
