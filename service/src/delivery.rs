//! What a request says of how its answer is to be given, beside what the answer is.

/// How an answer is given.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Whether it comes token by token.
    pub streams: bool,
    /// Whether a stream tells at its end how many tokens there were.
    pub includes_usage: bool,
    /// Whether it comes with log-probabilities.
    pub has_logprobs: bool,
    /// Whether it comes with what was recomputed.
    pub explains: bool,
    /// Texts that end it.
    pub stops: Vec<String>,
}
