//! Why a stored chunk is of no use.

use std::io;

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
    /// The word for it in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Damage::Missing => "missing",
            Damage::Unreadable(_) => "unreadable",
            Damage::Corrupt(_) => "corrupt",
            Damage::Incompatible(_) => "incompatible",
        }
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
