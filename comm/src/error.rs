//! What can go wrong between ranks.

use std::time::Duration;

use crate::Collective;
use crate::wire::Phase;

/// Result of a communicator's call or of reading a message.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure between ranks. After one of them the communicator is dead.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A collective did not end within its deadline.
    #[error(
        "rank {rank}: {operation:?} (call {sequence}, {phase}) not finished after {after:?}; waiting for ranks {missing:?}"
    )]
    Timeout {
        /// Who waited.
        rank: usize,
        /// What for.
        operation: Collective,
        /// The call's place in the sequence of calls.
        sequence: u64,
        /// The phase the call belongs to.
        phase: Phase,
        /// The ranks that have not made the call.
        missing: Vec<usize>,
        /// The deadline.
        after: Duration,
    },
    /// A rank gave up.
    #[error("rank {rank} gave up: {cause}")]
    Aborted {
        /// Which rank.
        rank: usize,
        /// Why.
        cause: String,
    },
    /// Two ranks made different calls, or the same call with sizes that do not fit.
    #[error("call {sequence}: rank {rank} made {found}, rank {other} made {expected}")]
    Mismatch {
        /// The call's place in the sequence of calls.
        sequence: u64,
        /// Who noticed.
        rank: usize,
        /// The call of the rank that noticed.
        found: String,
        /// The rank it differs from.
        other: usize,
        /// That rank's call.
        expected: String,
    },
    /// A frame of bytes is not a message.
    #[error("message: {0}")]
    Frame(String),
    /// The other end of a control channel is gone.
    #[error("the {0} is gone")]
    Disconnected(&'static str),
    /// The other end of a control channel does not read.
    #[error("the {peer} has read nothing for {after:?}, its queue is full")]
    Full {
        /// The other end.
        peer: &'static str,
        /// How long the sender waited for room.
        after: Duration,
    },
    /// The tensor library failed.
    #[error("tensor: {0}")]
    Tensor(String),
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Tensor(error.to_string())
    }
}
