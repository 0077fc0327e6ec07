//! Failures of training, and their exit codes.

use std::path::PathBuf;

use tributary_protocol::exit;

/// Result of training.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of training.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Samples or settings that cannot be.
    #[error("{0}")]
    Usage(String),
    /// A checkpoint that is not of this training, or none.
    #[error("{}: {what}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Description of the failure.
        what: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's own words.
        cause: std::io::Error,
    },
    /// The loss or a gradient is not finite.
    #[error("step {step}: the loss or its gradient is not a finite number; {kept}")]
    NotFinite {
        /// The step, from 0.
        step: u64,
        /// The checkpoint that is left, in words.
        kept: String,
    },
    /// The system has no thread to give.
    #[error("no threads for a rank: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// The failure of the model or of a pass through it.
    #[error(transparent)]
    Model(#[from] tributary_model::Error),
    /// Ranks could not talk.
    #[error(transparent)]
    Comm(#[from] tributary_comm::Error),
    /// A kernel refused.
    #[error(transparent)]
    Kernel(#[from] tributary_kernels::Error),
    /// The tensor library failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl Error {
    /// Whether another rank's failure is the cause.
    pub fn is_consequence(&self) -> bool {
        match self {
            Error::Model(error) => error.is_consequence(),
            Error::Comm(error) => {
                matches!(error, tributary_comm::Error::Aborted { .. } | tributary_comm::Error::Disconnected(_))
            }
            _ => false,
        }
    }

    /// Exit code of this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => exit::USAGE,
            Error::Checkpoint { .. } => exit::INTEGRITY,
            Error::Write { .. } => exit::DISK,
            Error::Threads(_) => exit::CONFIGURATION,
            Error::NotFinite { .. } | Error::Tensor(_) => exit::BUG,
            Error::Model(error) => error.exit_code(),
            Error::Comm(error) => error.exit_code(),
            Error::Kernel(error) => error.exit_code(),
        }
    }
}
