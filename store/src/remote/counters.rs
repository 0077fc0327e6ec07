//! Counters of an object store's requests and their outcomes, which only grow.

use std::time::Duration;

use super::reason::Reason;

/// Kind of a request to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// To give a chunk.
    Get,
    /// To keep a chunk.
    Put,
    /// To say which chunks there are.
    List,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 3] = [Operation::Get, Operation::Put, Operation::List];

    /// The word for it in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::List => "list",
        }
    }
}

/// Outcomes of one kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OperationCounters {
    /// Requests that the store got and that have ended, well or not.
    pub count: u64,
    /// The time that these took, from when it was their turn, all attempts together.
    pub seconds: f64,
    /// Attempts after the first.
    pub again: u64,
    errors: [u64; Reason::ALL.len()],
}

impl OperationCounters {
    /// Number of requests that ended for this reason. Requests that the store never got count too
    /// (`full`, `down`, `too-large`).
    pub fn errors(&self, reason: Reason) -> u64 {
        self.errors[reason as usize]
    }
}

/// Counters of a store's requests since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RemoteCounters {
    /// Bytes of chunks that came.
    pub read_bytes: u64,
    /// Bytes of chunks that are kept there.
    pub written_bytes: u64,
    /// Number of times that the store went down.
    pub downs: u64,
    operations: [OperationCounters; Operation::ALL.len()],
}

impl RemoteCounters {
    /// Outcomes of one kind of request.
    pub fn of(&self, operation: Operation) -> &OperationCounters {
        &self.operations[operation as usize]
    }

    /// Notes that the store was asked, for so long, so often.
    pub(crate) fn asked(&mut self, operation: Operation, took: Duration, attempts: usize) {
        let counters = &mut self.operations[operation as usize];
        counters.count += 1;
        counters.seconds += took.as_secs_f64();
        counters.again += attempts.saturating_sub(1) as u64;
    }

    /// Notes that a request ended for this reason.
    pub(crate) fn failed(&mut self, operation: Operation, reason: Reason) {
        self.operations[operation as usize].errors[reason as usize] += 1;
    }
}
