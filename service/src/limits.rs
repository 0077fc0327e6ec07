//! Limits of a service's clients: sizes of requests, numbers of connections and requests, and
//! times.

use std::time::Duration;

use tributary_coordinator::Prepared;
use tributary_protocol::{METHODS, Method};

use crate::error::ApiError;

/// Limits of a service. The ranks' memory has other limits ([`tributary_engine::Limits`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// The longest body of a request, in bytes.
    pub body_bytes: usize,
    /// Documents of one request.
    pub documents: usize,
    /// Tokens of one prompt: prefix, context and query.
    pub prompt_tokens: usize,
    /// Tokens of one answer.
    pub answer_tokens: usize,
    /// Open connections. When there are as many, the one that has been idle for longest makes place
    /// for a new one.
    pub connections: usize,
    /// From a request's first byte to the end of its head.
    pub header_time: Duration,
    /// Time for which a connection without requests stays open.
    pub idle_time: Duration,
    /// From a request's head to the end of its answer.
    pub request_time: Duration,
    /// Time that in-flight requests have left when the service is ended.
    pub drain_time: Duration,
    /// The methods that a request may name.
    pub methods: AllowedMethods,
}

/// Some of the methods, as a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowedMethods(u64);

impl AllowedMethods {
    /// All methods.
    pub const ALL: Self = Self(u64::MAX);

    /// These methods alone.
    pub fn only(methods: &[&'static Method]) -> Self {
        Self(methods.iter().map(|method| Self::bit(method)).fold(0, |all, bit| all | bit))
    }

    /// Whether a method is among them.
    pub fn allows(self, method: &Method) -> bool {
        self.0 & Self::bit(method) != 0
    }

    fn bit(method: &Method) -> u64 {
        METHODS.iter().position(|other| *other == method).map_or(0, |place| 1 << place)
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            documents: 4096,
            prompt_tokens: 1 << 20,
            answer_tokens: 1 << 14,
            connections: 4096,
            header_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(75),
            request_time: Duration::from_secs(1800),
            drain_time: Duration::from_secs(120),
            methods: AllowedMethods::ALL,
        }
    }
}

impl ClientLimits {
    /// Checks how many tokens a prompt has.
    ///
    /// # Errors
    /// Returns status 400 with both numbers.
    pub fn check_prompt(&self, prepared: &Prepared) -> Result<(), ApiError> {
        let context: usize = prepared.chunks.iter().map(|chunk| chunk.ids.len()).sum();
        let tokens = prepared.prefix.len() + context + prepared.query.len();
        at_most("messages", "tokens of prompt", tokens, self.prompt_tokens)
    }
}

fn at_most(param: &str, what: &str, number: usize, most: usize) -> Result<(), ApiError> {
    if number <= most {
        return Ok(());
    }
    Err(ApiError::parameter(param, format!("{number} {what}; this service takes at most {most}")))
}
