//! Errors of a load: it cannot be made, or its result cannot be kept. Failures of single requests
//! are counted, and are no errors.

use std::io;
use std::path::{Path, PathBuf};

use tributary_protocol::exit;

/// Reason why a run cannot be made.
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
        /// Number of clients asked for.
        clients: usize,
        /// Why not.
        cause: io::Error,
    },
    /// The server cannot be reached, or does not report facts that the first measured request
    /// needs.
    #[error("{url}: {what}")]
    Server {
        /// Requested URL.
        url: String,
        /// Answer that came instead.
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

    /// Exit code of the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::Read { .. } => exit::USAGE,
            Error::Write { .. } => exit::DISK,
            Error::Threads { .. } => exit::OUT_OF_MEMORY,
            Error::Server { .. } => exit::CONFIGURATION,
        }
    }
}
