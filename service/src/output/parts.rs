//! The parts of an answer that chats and texts have in common.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tributary_engine::{Answered, Client};

use super::explanation::Explanation;
use super::measured::{Metrics, Usage};
use crate::spoken::Piece;

/// Which form an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A chat completion.
    Chat,
    /// A text completion.
    Text,
}

/// What all parts of one answer have in common.
#[derive(Debug, Clone)]
pub struct Frame {
    pub(super) form: Form,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

/// What is said at the end of an answer.
pub struct Ending<'a> {
    pub(super) reason: &'static str,
    /// Tokens of its prompt and its own.
    pub usage: Usage,
    pub(super) metrics: Metrics<'a>,
    pub(super) explanation: Option<Explanation<'a>>,
    /// Log-probabilities of the prompt's tokens, where they are told.
    pub prompt: Option<PromptLogprobs>,
}

/// Log-probabilities of a prompt's tokens, by token id; null for the first.
pub type PromptLogprobs = Vec<Option<BTreeMap<String, PromptLogprob>>>;

/// How likely a token is in its place in a prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PromptLogprob {
    /// Natural logarithm of its probability, by the logits as they are.
    pub logprob: f32,
    /// 1 for the likeliest.
    pub rank: u32,
    /// Its text.
    pub decoded_token: String,
}

/// One of the answers to a request.
pub struct Told<'a> {
    /// The whole text.
    pub piece: &'a Piece,
    /// What is said at its end.
    pub ending: &'a Ending<'a>,
}

/// The place of a part in a stream.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The number of the answer.
    pub index: usize,
    /// Whether it is the answer's first part.
    pub is_first: bool,
    /// Tokens so far, where every part tells them.
    pub usage: Option<&'a Usage>,
}

impl<'a> Ending<'a> {
    /// The end of an answer of so many tokens; explained where `explainer` is there to decode tokens.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn new(
        reason: &'static str,
        tokens: usize,
        answered: &'a Answered,
        explainer: Option<&Client>,
    ) -> tributary_engine::Result<Self> {
        let explanation = explainer.map(|client| Explanation::of(answered, client)).transpose()?;
        let (usage, metrics) = (Usage::of(answered, tokens), Metrics::of(answered));
        Ok(Self { reason, usage, metrics, explanation, prompt: None })
    }
}

impl Form {
    /// The parameter that holds a prompt.
    pub fn prompt(self) -> &'static str {
        match self {
            Form::Chat => "messages",
            Form::Text => "prompt",
        }
    }
}

impl Frame {
    /// The frame of the request of this number.
    pub fn new(form: Form, request: u64, model: &str) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let kind = match form {
            Form::Chat => "chatcmpl",
            Form::Text => "cmpl",
        };
        Self { form, id: format!("{kind}-{created:x}-{request}"), created, model: model.to_owned() }
    }

    /// The name that the answer has for its client.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it is a chat's.
    pub fn is_chat(&self) -> bool {
        matches!(self.form, Form::Chat)
    }
}

/// An object as text.
pub(super) fn text_of(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("its keys are texts")
}
