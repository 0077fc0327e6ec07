//! Traces of real traffic: requests with their times, lengths and the identities of their parts.
//! A trace has no texts. Equal identities stand for equal texts.

mod blocks;
mod export;
mod formats;
mod reuse;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use self::export::mooncake;
pub use self::formats::read;
pub use self::reuse::reuse;

/// Most tokens of a part: more is a mistake, and would be memory.
const MOST_TOKENS: usize = 1 << 24;

/// A run of tokens that may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    /// Its identity.
    pub id: u64,
    /// Number of its tokens.
    pub tokens: usize,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceRequest {
    /// Seconds since the first request.
    pub at_s: f64,
    /// Tokens of its answer.
    pub output_tokens: usize,
    /// Parts of its system text.
    pub system: Vec<Part>,
    /// Its documents.
    pub documents: Vec<Part>,
    /// Parts after the documents: earlier turns and the question, or the whole of a prompt without
    /// known documents.
    pub rest: Vec<Part>,
}

/// Requests in the order of their times.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Name of the format.
    pub format: &'static str,
    /// The requests.
    pub requests: Vec<TraceRequest>,
    /// Number of requests that were not in the order of their times.
    pub unordered: usize,
}

impl TraceRequest {
    /// The parts of its prompt, in their order.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.system.iter().chain(&self.documents).chain(&self.rest)
    }

    /// Tokens of its prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.parts().map(|part| part.tokens).sum()
    }
}

impl Trace {
    /// Requests of this time window of the trace in seconds, from its first one on, at most
    /// `requests` of them, with all lengths multiplied by `scale`; at least one token is left of
    /// each part.
    #[must_use]
    pub fn part(mut self, window: &Range<f64>, requests: Option<usize>, scale: f64) -> Self {
        self.requests.retain(|request| window.contains(&request.at_s));
        self.requests.truncate(requests.unwrap_or(usize::MAX));
        let first = self.requests.first().map_or(0.0, |request| request.at_s);
        let scaled = |tokens: usize| ((tokens as f64 * scale).round() as usize).clamp(1, MOST_TOKENS);
        for TraceRequest { at_s, output_tokens, system, documents, rest } in &mut self.requests {
            *at_s -= first;
            *output_tokens = scaled(*output_tokens);
            let parts = system.iter_mut().chain(documents).chain(rest);
            parts.for_each(|part| part.tokens = scaled(part.tokens));
        }
        self
    }
}
