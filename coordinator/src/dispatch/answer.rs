//! The answer of the ranks to a request, and the clock that measures its times.

use std::time::{Duration, Instant};

use tributary_protocol::{Outcome, RankReport};

/// Starts when a request is accepted, before anything is done for it.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    accepted: Instant,
}

impl Clock {
    /// Starts: call it when the request is accepted.
    pub fn start() -> Self {
        Self { accepted: Instant::now() }
    }

    /// Time since the request was accepted.
    pub fn elapsed(&self) -> Duration {
        self.accepted.elapsed()
    }
}

/// What came back, and when.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// From the request's acceptance to the plan ready to be sent, without waiting for its turn: tokenisation, chunks, plan.
    pub tokenize: Duration,
    /// Waiting for its turn.
    pub queued: Duration,
    /// From the request's acceptance to the first token in the coordinator's hands.
    pub ttft: Duration,
    /// From the request's acceptance to the last report.
    pub total: Duration,
    /// What came out.
    pub outcome: Outcome,
    /// One report a rank, in rank order.
    pub reports: Vec<RankReport>,
}
