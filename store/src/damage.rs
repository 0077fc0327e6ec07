//! Why a stored chunk is of no use.

use std::io;

use tributary_protocol::StoreError;

/// Why a stored chunk is of no use. It is computed anew.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// There is no such file.
    #[error("it is not there")]
    Missing,
    /// The system does not give it out.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file is not as it was written.
    #[error("it is damaged: {0}")]
    Corrupt(String),
    /// The file is as it was written, and is of something else.
    #[error("it is of another {0}")]
    Incompatible(&'static str),
}

impl Damage {
    /// Its kind, for reports and metrics.
    pub fn kind(&self) -> StoreError {
        match self {
            Damage::Missing => StoreError::Missing,
            Damage::Unreadable(error) => kind_of(error),
            Damage::Corrupt(_) => StoreError::Corrupt,
            Damage::Incompatible(_) => StoreError::Incompatible,
        }
    }

    /// The word for it.
    pub fn reason(&self) -> &'static str {
        self.kind().name()
    }

    /// Whether the file is to be moved aside: it will never be of use under this name.
    pub fn is_of_the_file(&self) -> bool {
        matches!(self, Damage::Corrupt(_) | Damage::Incompatible(_))
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Damage::Corrupt(what.into())
    }
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Damage::Missing,
            io::ErrorKind::UnexpectedEof => Damage::corrupt("it ends early"),
            _ => Damage::Unreadable(error),
        }
    }
}

/// The kind of a failure of the system.
pub(crate) fn kind_of(error: &io::Error) -> StoreError {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => StoreError::Missing,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => StoreError::Denied,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => StoreError::Full,
        ErrorKind::TimedOut => StoreError::Slow,
        _ => StoreError::Unreadable,
    }
}
