//! What a request says of how its answer is to be given, beside what the answer is.

/// How an answer is given.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Whether it comes token by token.
    pub streams: bool,
    /// Whether a stream tells at its end how many tokens there were.
    pub includes_usage: bool,
    /// Whether every part of a stream tells how many tokens there were so far.
    pub counts_always: bool,
    /// Whether it comes with log-probabilities.
    pub has_logprobs: bool,
    /// Whether it comes with what was recomputed.
    pub explains: bool,
    /// Texts that end it.
    pub stops: Vec<String>,
    /// Whether the text that ended it belongs to it.
    pub keeps_stop: bool,
    /// Whether there is an answer at all: a request for 0 tokens wants what is said of its prompt.
    pub shows_answer: bool,
    /// Whether the prompt stands before it.
    pub echoes: bool,
    /// Whether it comes with log-probabilities of the prompt's tokens, beside those of an echo.
    pub tells_prompt: bool,
    /// Tokens that end it.
    pub ends: Vec<u32>,
    /// Where the model's reasoning comes.
    pub reasoning: ReasoningWish,
}

/// What a request says of the model's reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReasoningWish {
    /// Whether it comes apart from the answer; as the service does where absent.
    pub is_apart: Option<bool>,
    /// Whether it does not come at all.
    pub is_left_out: bool,
}
