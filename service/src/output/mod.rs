//! Answers to clients, in OpenAI's forms, with a `metrics` object and, where the request asks for
//! it, a `tributary` object.

mod chat;
mod chunks;
mod completion;
mod explanation;
mod measured;
mod parts;

use crate::delivery::Delivery;
use crate::spoken::Piece;

pub use self::chunks::ChunksAnswer;
pub use self::measured::{Metrics, Usage};
pub use self::parts::{Ending, Form, Frame, Part, PromptLogprob, Told};

#[cfg(test)]
pub use self::{
    chat::{ChatCompletion, ChatPart},
    completion::TextCompletion,
};

impl Frame {
    /// The whole answers.
    pub fn whole(&self, answers: &[Told<'_>], usage: &Usage, delivery: &Delivery) -> String {
        match self.form {
            Form::Chat => chat::whole(self, answers, usage, delivery),
            Form::Text => completion::whole(self, answers, usage, delivery),
        }
    }

    /// The first part of an answer whose first token completes no text; none where that says
    /// nothing.
    pub fn opening(&self, part: Part<'_>) -> Option<String> {
        match self.form {
            Form::Chat => Some(chat::opening(self, part)),
            Form::Text => None,
        }
    }

    /// A part of the text.
    pub fn piece(&self, piece: &Piece, part: Part<'_>, delivery: &Delivery) -> String {
        match self.form {
            Form::Chat => chat::piece(self, piece, part, delivery),
            Form::Text => completion::piece(self, piece, part, delivery),
        }
    }

    /// The end of the text.
    pub fn closing(&self, ending: &Ending<'_>, part: Part<'_>) -> String {
        match self.form {
            Form::Chat => chat::closing(self, ending, part),
            Form::Text => completion::closing(self, ending, part),
        }
    }

    /// Numbers of tokens, after the end of the last answer.
    pub fn usage(&self, usage: &Usage) -> String {
        match self.form {
            Form::Chat => chat::usage(self, usage),
            Form::Text => completion::usage(self, usage),
        }
    }
}
