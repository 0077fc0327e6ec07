//! Why a load cannot be made or its result cannot be kept. What happens to a single request is no error: it is counted.

use std::io;
use std::path::{Path, PathBuf};

use tributary_protocol::exit;

/// What is in the way of a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options that cannot be, or do not fit together.
    #[error("{0}")]
    Usage(String),
    /// A file that is named by an option cannot be read.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// A result cannot be written.
    #[error("cannot write {path}: {cause}", path = path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The system has no thread for each client.
    #[error("--clients {clients}: the system gives no thread to each of them: {cause}")]
    Threads {
        /// How many were asked for.
        clients: usize,
        /// Why not.
        cause: io::Error,
    },
    /// The server cannot be reached, or does not say what must be known before the first measured request.
    #[error("{url}: {what}")]
    Server {
        /// What was asked for.
        url: String,
        /// What came instead.
        what: String,
    },
}

/// A value, or why a run cannot be.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Options that cannot be.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Error::Usage(what.into())
    }

    /// The failure of reading a file.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |cause| Error::Read { path, cause }
    }

    /// The exit code that stands for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::Read { .. } => exit::USAGE,
            Error::Write { .. } => exit::DISK,
            Error::Threads { .. } => exit::OUT_OF_MEMORY,
            Error::Server { .. } => exit::CONFIGURATION,
        }
    }
}
