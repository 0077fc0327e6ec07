//! Errors of an evaluation.

use std::path::Path;

use tributary_protocol::exit;

/// Result of an evaluation's work.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A failure of the engine, or an impossible request.
    #[error(transparent)]
    Engine(#[from] tributary_engine::Error),
    /// An answer has failed, and none can follow.
    #[error("{reason}")]
    Interrupted {
        /// The exit code of the failure.
        exit_code: u8,
        /// The failure and its remedy, in one line.
        reason: String,
    },
    /// A training's.
    #[error(transparent)]
    Train(Box<tributary_train::Error>),
    /// A file or a folder.
    #[error("{what}")]
    File {
        /// Failed operation.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// Something cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A row cannot be written as CSV.
    #[error(transparent)]
    Csv(#[from] csv::Error),
}

impl From<tributary_train::Error> for Error {
    fn from(error: tributary_train::Error) -> Self {
        Error::Train(Box::new(error))
    }
}

impl From<rayon::ThreadPoolBuildError> for Error {
    fn from(error: rayon::ThreadPoolBuildError) -> Self {
        tributary_train::Error::from(error).into()
    }
}

impl Error {
    /// The exit code of a process that ends with this error: the engine's, 74 disk.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Engine(error) => error.exit_code(),
            Error::Train(error) => error.exit_code(),
            Error::Interrupted { exit_code, .. } => *exit_code,
            Error::File { .. } => exit::DISK,
            Error::Json(_) | Error::Csv(_) => exit::BUG,
        }
    }

    /// Whether another rank has failed first, and reports it itself.
    pub fn is_told_elsewhere(&self) -> bool {
        match self {
            Error::Engine(error) => error.is_told_elsewhere(),
            Error::Train(error) => error.is_consequence(),
            _ => false,
        }
    }

    /// Something that was asked for cannot be.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        tributary_engine::Error::Usage(what.into()).into()
    }

    /// The error of a failed operation on a path.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let what = format!("{what} {}", path.display());
        |source| Error::File { what, source }
    }
}

impl From<tributary_planner::Error> for Error {
    fn from(error: tributary_planner::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl From<tributary_coordinator::Error> for Error {
    fn from(error: tributary_coordinator::Error) -> Self {
        Error::Engine(error.into())
    }
}
