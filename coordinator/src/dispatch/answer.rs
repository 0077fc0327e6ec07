//! The answer of the ranks to a request, and the clock that measures its times.

use std::time::{Duration, Instant};

use tributary_protocol::{Outcome, RankReport};

/// Clock of a request: starts when the request is accepted, before any work for it.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    accepted: Instant,
}

impl Clock {
    /// Starts the clock: call it when the request is accepted.
    pub fn start() -> Self {
        Self { accepted: Instant::now() }
    }

    /// The moment at which the request was accepted.
    pub fn accepted(&self) -> Instant {
        self.accepted
    }

    /// Time since the request was accepted.
    pub fn elapsed(&self) -> Duration {
        self.accepted.elapsed()
    }
}

/// Results of a request, and their times.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Time from the request's acceptance to the complete plan, without waiting for its turn:
    /// tokenisation, chunks, plan.
    pub tokenize: Duration,
    /// Time waiting for its turn.
    pub queued: Duration,
    /// Time from the request's acceptance to the arrival of the first token at the coordinator.
    pub ttft: Duration,
    /// Time from the request's acceptance to the last report.
    pub total: Duration,
    /// Outcome of the request.
    pub outcome: Outcome,
    /// One report a rank, in rank order.
    pub reports: Vec<RankReport>,
}
