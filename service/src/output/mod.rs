//! What a client gets, in OpenAI's forms, with a `metrics` object beside them and, where it was asked for, a `tributary` object.

mod chat;
mod chunks;
mod completion;
mod explanation;
mod measured;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tributary_engine::{Answered, Client};

use crate::delivery::Delivery;
use crate::spoken::Piece;

pub use self::chunks::ChunksAnswer;
pub use self::explanation::Explanation;
pub use self::measured::{Metrics, Usage};

#[cfg(test)]
pub use self::{
    chat::{ChatCompletion, ChatPart},
    completion::TextCompletion,
};

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
    form: Form,
    id: String,
    created: u64,
    model: String,
}

/// What is said at the end of an answer.
pub struct Ending<'a> {
    reason: &'static str,
    usage: Usage,
    metrics: Metrics<'a>,
    explanation: Option<Explanation<'a>>,
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
        Ok(Self { reason, usage: Usage::of(answered, tokens), metrics: Metrics::of(answered), explanation })
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

    /// A whole answer.
    pub fn whole(&self, piece: &Piece, delivery: &Delivery, ending: &Ending<'_>) -> String {
        match self.form {
            Form::Chat => chat::whole(self, piece, delivery, ending),
            Form::Text => completion::whole(self, piece, delivery, ending),
        }
    }

    /// The first part of a stream; empty where there is none.
    pub fn opening(&self) -> String {
        match self.form {
            Form::Chat => chat::opening(self),
            Form::Text => String::new(),
        }
    }

    /// A part of the text.
    pub fn piece(&self, piece: &Piece, delivery: &Delivery) -> String {
        match self.form {
            Form::Chat => chat::piece(self, piece, delivery),
            Form::Text => completion::piece(self, piece, delivery),
        }
    }

    /// The end of the text.
    pub fn closing(&self, ending: &Ending<'_>) -> String {
        match self.form {
            Form::Chat => chat::closing(self, ending),
            Form::Text => completion::closing(self, ending),
        }
    }

    /// How many tokens there were, behind the end.
    pub fn usage(&self, ending: &Ending<'_>) -> String {
        match self.form {
            Form::Chat => chat::usage(self, ending),
            Form::Text => completion::usage(self, ending),
        }
    }
}

/// An object as text.
fn text_of(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("its keys are texts")
}
