//! The terms under which a service reads bodies.

use tributary_coordinator::RequestSettings;

use crate::limits::ClientLimits;

/// What a service says of how bodies are read.
#[derive(Debug, Clone)]
pub struct Terms<'a> {
    /// The model's name.
    pub model: &'a str,
    /// How requests are answered that do not say otherwise.
    pub settings: &'a RequestSettings,
    /// What clients may ask at most.
    pub limits: &'a ClientLimits,
    /// Whether fields that are not known pass.
    pub ignores_unknown: bool,
    /// Tokens of an answer where a request does not say how many, if the service says so.
    pub default_tokens: Option<usize>,
    /// Positions that the model has.
    pub max_positions: usize,
    /// Token ids that the model has: those below.
    pub vocabulary: usize,
}
