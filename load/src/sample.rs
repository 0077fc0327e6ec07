//! Outcome of one request, with its times.

use std::collections::BTreeMap;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The whole answer came.
    Answered,
    /// A status that is not 200.
    Status(u16),
    /// An error in the place of the rest of the stream.
    StreamError,
    /// The stream ended without an end of the answer.
    Incomplete,
    /// The connection ended before the response did.
    Cut,
    /// The connection was not accepted.
    Connect,
    /// The time for one request passed.
    Timeout,
    /// The answer is not HTTP, or not of the interface.
    Malformed,
    /// As many requests as may be were in flight already.
    NotSent,
}

impl Outcome {
    /// Its name in results.
    pub fn name(self) -> String {
        match self {
            Outcome::Answered => "answered".to_owned(),
            Outcome::Status(status) => format!("http_{status}"),
            Outcome::StreamError => "stream_error".to_owned(),
            Outcome::Incomplete => "incomplete".to_owned(),
            Outcome::Cut => "cut".to_owned(),
            Outcome::Connect => "connect".to_owned(),
            Outcome::Timeout => "timeout".to_owned(),
            Outcome::Malformed => "malformed".to_owned(),
            Outcome::NotSent => "not_sent".to_owned(),
        }
    }
}

/// One request. Times are seconds since its window began.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its number in the window.
    pub number: usize,
    /// When it was to be sent. All that it took counts from here.
    pub planned: f64,
    /// When it was sent; absent if it was not.
    pub sent: Option<f64>,
    /// When each part of the answer with a text came.
    pub parts: Vec<f64>,
    /// When it was over.
    pub ended: f64,
    /// Outcome of the request.
    pub outcome: Outcome,
    /// Milliseconds that it waited for its turn, as the server says.
    pub queue_ms: Option<f64>,
    /// Tokens of the prompt, as the server says.
    pub prompt_tokens: Option<u64>,
    /// Those of them that came from a cache.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer, as the server says; where it says nothing, the parts of the answer.
    pub generated_tokens: u64,
}

impl Sample {
    /// A request that nothing is known of yet.
    pub fn new(number: usize, planned: f64) -> Self {
        Self {
            number,
            planned,
            sent: None,
            parts: Vec::new(),
            ended: planned,
            outcome: Outcome::NotSent,
            queue_ms: None,
            prompt_tokens: None,
            cached_tokens: None,
            generated_tokens: 0,
        }
    }

    /// Whether the whole answer came.
    pub fn is_answered(&self) -> bool {
        self.outcome == Outcome::Answered
    }

    /// Milliseconds from its planned time to the first text.
    pub fn ttft_ms(&self) -> Option<f64> {
        self.parts.first().map(|first| (first - self.planned) * 1e3)
    }

    /// Milliseconds from its planned time to its end.
    pub fn total_ms(&self) -> f64 {
        (self.ended - self.planned) * 1e3
    }

    /// Milliseconds from each part of the answer to the next.
    pub fn gaps_ms(&self) -> impl Iterator<Item = f64> {
        self.parts.windows(2).map(|pair| (pair[1] - pair[0]) * 1e3)
    }

    /// Milliseconds that the generator itself was late.
    pub fn late_ms(&self) -> Option<f64> {
        self.sent.map(|sent| (sent - self.planned) * 1e3)
    }
}

/// Number of requests by outcome.
pub fn outcomes(samples: &[Sample]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    samples.iter().for_each(|sample| *counts.entry(sample.outcome.name()).or_default() += 1);
    counts
}
