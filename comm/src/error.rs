//! Errors between ranks.

use std::time::Duration;

use tributary_protocol::{Phase, exit};

use crate::Collective;

/// Result of a communicator's call or of reading a message.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure between ranks. After one of them the communicator is dead.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A collective cannot end any more: all ranks have waited for as long as the timeout, or the
    /// start took too long.
    #[error(
        "rank {rank}: {} (call {sequence}, {phase}) not finished after {after:?}; waiting for ranks {missing:?}: {}",
        operation.name(), states.join("; ")
    )]
    Timeout {
        /// The rank that waited.
        rank: usize,
        /// The collective that it waited for.
        operation: Collective,
        /// The call's place in the sequence of calls.
        sequence: u64,
        /// The phase the call belongs to.
        phase: Phase,
        /// The ranks that have not made the call.
        missing: Vec<usize>,
        /// Last known activity of each of them, one sentence each.
        states: Vec<String>,
        /// The deadline.
        after: Duration,
    },
    /// A rank computes without progress.
    #[error("rank {rank}{place} is stuck: it {activity}; a step may take {limit:?} (--collective-timeout)")]
    Stalled {
        /// Which rank.
        rank: usize,
        /// The process it runs in, in parentheses; empty where all ranks share one process.
        place: String,
        /// The activity in which it is stuck, and for how long.
        activity: String,
        /// The longest time that it may take.
        limit: Duration,
    },
    /// A rank gave up.
    #[error("rank {rank} gave up: {cause}")]
    Aborted {
        /// Which rank.
        rank: usize,
        /// Why.
        cause: String,
        /// Exit code of the cause.
        exit_code: u8,
    },
    /// A rank has left in peace, and another needs it.
    #[error("rank {rank} left")]
    Left {
        /// Which rank.
        rank: usize,
    },
    /// Two ranks made different calls, or the same call with sizes that do not fit.
    #[error("call {sequence}: rank {rank} made {found}, rank {other} made {expected}")]
    Mismatch {
        /// The call's place in the sequence of calls.
        sequence: u64,
        /// The rank that noticed.
        rank: usize,
        /// The call of the rank that noticed.
        found: String,
        /// The rank it differs from.
        other: usize,
        /// That rank's call.
        expected: String,
    },
    /// Bytes are not a message, or were damaged on their way.
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
        /// Time for which the sender waited for room.
        after: Duration,
    },
    /// A backend that is not in this program.
    #[error("this program was built without the {backend} backend: build with `--features {backend}`")]
    NotBuilt {
        /// Name of the backend, which is the feature's too.
        backend: &'static str,
    },
    /// The launcher and the library do not agree, or one of them failed at the start.
    #[error("start: {0}")]
    Start(String),
    /// The ranks did not find each other in time.
    #[error("start: the ranks did not find each other within {0:?}")]
    StartTimeout(Duration),
    /// A call of NCCL failed, here or on another rank.
    #[error("NCCL: {call}: {cause}")]
    Nccl {
        /// The function, or its purpose.
        call: &'static str,
        /// NCCL's own words.
        cause: String,
        /// Exit code of the failure.
        exit_code: u8,
    },
    /// The GPU has no memory for the data that a call receives.
    #[error("no memory on the GPU for the {bytes} bytes that a call receives; give ranks less with --device-memory")]
    OutOfMemory {
        /// The bytes that were asked for.
        bytes: usize,
    },
    /// Ranks that have one GPU between them.
    #[error(
        "ranks {} share one GPU of {host}, {gpu}: start as many ranks as GPUs, or pass --allow-shared-gpu for a test that is \
         not timed",
        list(ranks)
    )]
    SharedGpu {
        /// The ranks.
        ranks: Vec<usize>,
        /// Their host.
        host: String,
        /// The GPU's UUID and its address on the bus.
        gpu: String,
    },
    /// Ranks that speak different versions of the protocol.
    #[error("the ranks run different versions of this program: {}", table(versions, "protocol"))]
    Version {
        /// One version a rank.
        versions: Vec<u32>,
    },
    /// The tensor library failed.
    #[error("tensor: {0}")]
    Tensor(String),
}

impl Error {
    /// Exit code of this failure: 69 rank lost, 70 a bug, 71 out of memory, 75 deadline, 76 version
    /// skew, 78 configuration.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Timeout { .. } | Error::Stalled { .. } | Error::StartTimeout(_) => exit::DEADLINE,
            Error::Aborted { exit_code, .. } | Error::Nccl { exit_code, .. } => *exit_code,
            Error::OutOfMemory { .. } => exit::OUT_OF_MEMORY,
            Error::Left { .. } | Error::Disconnected(_) | Error::Full { .. } => exit::RANK_LOST,
            Error::Version { .. } => exit::VERSION_SKEW,
            Error::NotBuilt { .. } | Error::Start(_) | Error::SharedGpu { .. } => exit::CONFIGURATION,
            Error::Mismatch { .. } | Error::Frame(_) | Error::Tensor(_) => exit::BUG,
        }
    }

    /// The end of a group whose rank panicked.
    pub(crate) fn panicked(rank: usize) -> Self {
        Error::Aborted { rank, cause: format!("rank {rank} panicked"), exit_code: exit::BUG }
    }
}

/// `rank: value` of each rank, in one line.
fn table(versions: &[u32], what: &str) -> String {
    let entries = versions.iter().enumerate().map(|(rank, version)| format!("rank {rank}: {what} {version}"));
    entries.collect::<Vec<_>>().join(", ")
}

/// `0, 1 and 2`.
fn list(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
        None => String::new(),
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Tensor(error.to_string())
    }
}

impl From<tributary_protocol::Error> for Error {
    fn from(error: tributary_protocol::Error) -> Self {
        let tributary_protocol::Error::Message(what) = error;
        Error::Frame(what)
    }
}
