//! Failures of a rank, with their exit codes.

use tributary_kernels::cuda;
use tributary_protocol::{Refusal, exit};

/// Result of a rank's work.
pub type Result<T> = std::result::Result<T, Error>;

/// A rank's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model or an adapter failed. Boxed, since its failures are larger than all others.
    #[error(transparent)]
    Model(Box<tributary_model::Error>),
    /// Numbers that are not finite where they must be: the weights are damaged or overflowed.
    #[error("{what} hold NaN or infinite values on rank {rank}: the weights are damaged, or the dtype overflows")]
    NotFinite {
        /// The numbers in question.
        what: &'static str,
        /// The rank that found them.
        rank: usize,
    },
    /// A plan that does not fit this rank's model or world.
    #[error("plan: {0}")]
    Plan(String),
    /// A request's own failure that another rank has found and sent to all.
    #[error("{}", .0.cause)]
    Refused(Refusal),
    /// The request was cancelled during its prefill; every rank has learnt of it at the same
    /// control point.
    #[error("the request was cancelled")]
    Cancelled,
    /// A state that only a bug in this program can cause.
    #[error("a bug: {0}")]
    Bug(&'static str),
    /// Communication between ranks failed.
    #[error(transparent)]
    Comm(#[from] tributary_comm::Error),
    /// A kernel failed.
    #[error(transparent)]
    Kernel(#[from] tributary_kernels::Error),
    /// The tensor library failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl Error {
    /// The exit code of this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Model(error) => error.exit_code(),
            Error::Plan(_) => exit::USAGE,
            Error::NotFinite { .. } => exit::INTEGRITY,
            Error::Refused(refusal) => refusal.exit_code,
            Error::Comm(error) => error.exit_code(),
            Error::Kernel(error) => error.exit_code(),
            Error::Tensor(error) if cuda::is_out_of_memory(error) => exit::OUT_OF_MEMORY,
            // The client has left and is not told.
            Error::Cancelled => exit::RANK_LOST,
            Error::Tensor(_) | Error::Bug(_) => exit::BUG,
        }
    }

    /// Whether the failure is one request's own and every rank has learnt of it alike, from the
    /// plan or from a collective. Then the ranks are still in step, and the group can continue
    /// without the request.
    pub fn is_the_requests(&self) -> bool {
        match self {
            Error::Model(error) => matches!(**error, tributary_model::Error::TooLong { .. }),
            Error::NotFinite { .. } | Error::Plan(_) | Error::Refused(_) | Error::Cancelled => true,
            _ => false,
        }
    }

    /// The failure as a message.
    pub fn refusal(&self) -> Refusal {
        Refusal { exit_code: self.exit_code(), cause: self.to_string() }
    }

    /// Whether another rank's failure is the cause: the group should name that one.
    pub fn is_consequence(&self) -> bool {
        matches!(self, Error::Comm(tributary_comm::Error::Aborted { .. } | tributary_comm::Error::Disconnected(_)))
    }
}

/// Variants of both errors become the worker's own: a group treats them alike, independent of their
/// origin.
impl From<tributary_model::Error> for Error {
    fn from(error: tributary_model::Error) -> Self {
        use tributary_model::Error as Own;
        match error {
            Own::Input(what) => Error::Plan(what),
            Own::Cancelled => Error::Cancelled,
            Own::Comm(error) => Error::Comm(error),
            Own::Kernel(error) => Error::Kernel(error),
            Own::Tensor(error) => Error::Tensor(error),
            other => Error::Model(Box::new(other)),
        }
    }
}

impl From<tributary_protocol::Error> for Error {
    fn from(error: tributary_protocol::Error) -> Self {
        Error::Comm(error.into())
    }
}
