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

/// Common fields of all parts of one answer.
#[derive(Debug, Clone)]
pub struct Frame {
    pub(super) form: Form,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

/// End of an answer.
pub struct Ending<'a> {
    pub(super) reason: &'static str,
    /// Tokens of its prompt and its own.
    pub usage: Usage,
    pub(super) metrics: Metrics<'a>,
    pub(super) explanation: Option<Explanation<'a>>,
    /// Log-probabilities of the prompt's tokens, where the answer has them.
    pub prompt: Option<PromptLogprobs>,
}

/// Log-probabilities of a prompt's tokens, by token id; null for the first.
pub type PromptLogprobs = Vec<Option<BTreeMap<String, PromptLogprob>>>;

/// Log-probability of a token in its place in a prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PromptLogprob {
    /// Natural logarithm of its probability, by the unmodified logits.
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
    /// End of the answer.
    pub ending: &'a Ending<'a>,
}

/// The place of a part in a stream.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The number of the answer.
    pub index: usize,
    /// Whether it is the answer's first part.
    pub is_first: bool,
    /// Numbers of tokens so far, where every part has them.
    pub usage: Option<&'a Usage>,
}

impl<'a> Ending<'a> {
    /// End of an answer with `completion_tokens` tokens; with an explanation where `explainer` can
    /// decode tokens.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
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
