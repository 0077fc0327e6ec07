//! Errors of a study.

use std::path::Path;

use tributary_protocol::exit;

/// Result of a study's work.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of a study.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A failure of the engine, or an impossible request.
    #[error(transparent)]
    Engine(#[from] tributary_engine::Error),
    /// A run has failed, and none can follow.
    #[error("{reason}")]
    Interrupted {
        /// The exit code of the failure.
        exit_code: u8,
        /// The failure and its remedy, in one line.
        reason: String,
    },
    /// A file or a folder.
    #[error("{what}")]
    File {
        /// Failed operation.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// A report cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A row cannot be written as CSV.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    /// The page's template cannot be filled in.
    #[error(transparent)]
    Page(#[from] minijinja::Error),
}

impl Error {
    /// The exit code of a process that ends with this error: the engine's, 74 disk.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Engine(error) => error.exit_code(),
            Error::Interrupted { exit_code, .. } => *exit_code,
            Error::File { .. } => exit::DISK,
            Error::Json(_) | Error::Csv(_) | Error::Page(_) => exit::BUG,
        }
    }

    /// Whether it is the group's end, which was caused and reported elsewhere.
    pub fn is_told_elsewhere(&self) -> bool {
        matches!(self, Error::Engine(error) if error.is_told_elsewhere())
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

/// Errors that the engine has too.
macro_rules! of_the_engine {
    ($($error:ty),*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Error::Engine(error.into())
            }
        })*
    };
}

of_the_engine!(
    tributary_coordinator::Error,
    tributary_planner::Error,
    tributary_model::Error,
    tributary_comm::Error,
    rayon::ThreadPoolBuildError
);

impl From<tributary_kernels::Error> for Error {
    fn from(error: tributary_kernels::Error) -> Self {
        tributary_model::Error::from(error).into()
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        tributary_model::Error::from(error).into()
    }
}
