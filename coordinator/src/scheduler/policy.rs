//! The order in which waiting requests are taken.

use std::time::Duration;

/// Rule for the next of the waiting requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// Clients take turns by the tokens of their requests; those of one client are taken in the
    /// order of their arrival.
    #[default]
    Fifo,
    /// The request with the least work, whoever sent it. One that has waited for longer than
    /// `max_age` is taken before all younger ones.
    Shortest {
        /// Age from which a request is taken before all younger ones.
        max_age: Duration,
    },
}

/// A request that comes to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub request: u64,
    /// Its client.
    pub asker: u64,
    /// Tokens of its prompt, by which clients take turns.
    pub tokens: u64,
    /// Rows that its prefill has to compute: predicted work. Only [`Policy::Shortest`] reads it.
    pub work: u64,
    /// Moment of its arrival, on the clock of the scheduler's caller.
    pub at: Duration,
    /// Whether its sequence is to be held for another program.
    pub is_held: bool,
}

/// Facts of a waiting request that decide when it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// Its place in the fair order.
    pub(super) start: u64,
    pub(super) work: u64,
    pub(super) at: Duration,
}

/// Place in the order of a moment: the smallest is next, ties in the order of arrival.
pub(super) type Place = (bool, Duration, u64, u64);

impl Policy {
    /// Whether the work of requests decides.
    pub fn reads_work(self) -> bool {
        matches!(self, Policy::Shortest { .. })
    }

    /// The place of a waiting request at the moment `now`.
    pub(super) fn place(self, Standing { start, work, at }: Standing, now: Duration) -> Place {
        match self {
            Policy::Fifo => (false, Duration::ZERO, start, 0),
            Policy::Shortest { max_age } if now.saturating_sub(at) > max_age => (false, at, 0, 0),
            Policy::Shortest { .. } => (true, Duration::ZERO, work, start),
        }
    }
}
