//! A request whose answer another program decodes: a chat's or a text's body.

use tributary_coordinator::{Document, Prepared};
use tributary_engine::Client;
use tributary_planner::RequestSettings;

use super::chat::ChatRequest;
use super::completion::CompletionRequest;
use super::{Asked, Completed, Terms};
use crate::body::Fields;
use crate::error::ApiError;

/// A prompt to prefill.
#[derive(Debug, Clone)]
pub enum PrefillRequest {
    /// A body with `messages`.
    Chat(Box<ChatRequest>),
    /// A body with a `prompt`.
    Text(Box<CompletionRequest>),
}

impl Asked for PrefillRequest {
    fn read(fields: Fields, terms: &Terms<'_>) -> Result<Self, ApiError> {
        let this = match fields.length("prompt") > 0 {
            true => Self::Text(Box::new(CompletionRequest::read(fields, terms)?)),
            false => Self::Chat(Box::new(ChatRequest::read(fields, terms)?)),
        };
        let generation = match &this {
            Self::Chat(chat) => chat.generation(),
            Self::Text(text) => text.generation(),
        };
        if generation.delivery.streams {
            return Err(ApiError::parameter("stream", "`stream`: keys and values are read layer by layer instead"));
        }
        if generation.copies > 1 {
            return Err(ApiError::parameter("n", "`n`: the program that decodes draws as many answers as it likes"));
        }
        Ok(this)
    }

    fn prepare(&self, client: &Client) -> Result<Vec<Prepared>, ApiError> {
        let prompts = match self {
            Self::Chat(chat) => chat.prepare(client)?,
            Self::Text(text) => text.prepare(client)?,
        };
        match prompts.len() {
            1 => Ok(prompts),
            several => Err(ApiError::parameter("prompt", format!("{several} prompts; a prefill has one"))),
        }
    }

    fn documents(&self) -> &[Document] {
        match self {
            Self::Chat(chat) => chat.documents(),
            Self::Text(text) => text.documents(),
        }
    }

    fn empty_documents(&self) -> usize {
        match self {
            Self::Chat(chat) => chat.empty_documents(),
            Self::Text(text) => text.empty_documents(),
        }
    }

    fn settings(
        &self,
        prepared: &Prepared,
        of: (usize, usize),
        terms: &Terms<'_>,
    ) -> Result<RequestSettings, ApiError> {
        let mut settings = match self {
            Self::Chat(chat) => chat.settings(prepared, of, terms)?,
            Self::Text(text) => text.settings(prepared, of, terms)?,
        };
        settings.returns.logprobs.get_or_insert(0);
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_chat_or_a_text_that_one_answer_follows() {
        let read = |json: &str| {
            let fields = Fields::from_json(json.as_bytes()).expect("an object");
            super::super::kit::with_terms(|terms| PrefillRequest::read(fields, terms))
        };
        let chat = r#"{"messages": [{"role": "user", "content": "q"}], "documents": ["d"], "max_tokens": 9}"#;
        assert!(matches!(read(chat), Ok(PrefillRequest::Chat(_))));
        assert!(matches!(read(r#"{"prompt": [1, 2, 3]}"#), Ok(PrefillRequest::Text(_))));
        for (json, param) in [
            (r#"{"prompt": "a", "n": 2}"#, "n"),
            (r#"{"prompt": "a", "stream": true}"#, "stream"),
            (r#"{"messages": [{"role": "user", "content": "q"}], "stream": true}"#, "stream"),
            ("{}", "messages"),
        ] {
            assert_eq!(read(json).expect_err(json).param.as_deref(), Some(param), "{json}");
        }
    }
}
