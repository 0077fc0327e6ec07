//! Delivery of an answer, as the request asks for it.

/// Delivery of an answer.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Whether it comes token by token.
    pub streams: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub includes_usage: bool,
    /// Whether every part of a stream has the numbers of tokens so far.
    pub counts_always: bool,
    /// Whether it comes with log-probabilities.
    pub has_logprobs: bool,
    /// Whether it comes with the recomputed tokens.
    pub explains: bool,
    /// Texts that end it.
    pub stops: Vec<String>,
    /// Whether the text that ended it belongs to it.
    pub keeps_stop: bool,
    /// Whether there is an answer at all: a request for 0 tokens asks for facts of its prompt only.
    pub shows_answer: bool,
    /// Whether the prompt precedes the answer.
    pub echoes: bool,
    /// Whether it comes with log-probabilities of the prompt's tokens, apart from those of an echo.
    pub tells_prompt: bool,
    /// Tokens that end it.
    pub ends: Vec<u32>,
    /// Place of the model's reasoning.
    pub reasoning: ReasoningWish,
}

/// A request's choices about the model's reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReasoningWish {
    /// Whether it comes apart from the answer; as the service does where absent.
    pub is_apart: Option<bool>,
    /// Whether it does not come at all.
    pub is_left_out: bool,
}
