//! Errors of an engine, and their exit codes.

use tributary_coordinator::conductor::{Breakage, RequestFailure};
use tributary_protocol::exit;
use tributary_system::size::rounded;

use crate::disagreement::Disagreement;

/// Result of an engine's work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the engine, or of one of its parts.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that was asked for cannot be.
    #[error("{0}")]
    Usage(String),
    /// Something in the way the program was started or built does not fit.
    #[error("{0}")]
    Configuration(String),
    /// The system has no threads to give to the ranks.
    #[error("cannot start {world} ranks of {threads} threads: {cause}; use fewer")]
    Exhausted {
        /// Number of ranks.
        world: usize,
        /// Threads of each.
        threads: usize,
        /// Error of the system.
        cause: std::io::Error,
    },
    /// A device has less memory than its budget.
    #[error("--device-memory {}: {} are free on the device", rounded(*.needed_bytes), rounded(*.free_bytes))]
    DeviceMemory {
        /// Requested bytes.
        needed_bytes: u64,
        /// Free bytes.
        free_bytes: u64,
    },
    /// The ranks do not mean the same: a table.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// A failure after which this process can use a GPU no more.
    #[error("{cause}; the GPU takes no more work from this process: start it again")]
    Spoilt {
        /// The failure, in one line.
        cause: String,
    },
    /// A request's own failure, as its client gets it.
    #[error("{0}")]
    Request(RequestFailure),
    /// A failure that only a bug in this program can cause.
    #[error("{0}")]
    Bug(&'static str),
    /// The coordinator failed.
    #[error(transparent)]
    Coordinator(#[from] tributary_coordinator::Error),
    /// A model failed.
    #[error(transparent)]
    Model(#[from] tributary_model::Error),
    /// A rank's.
    #[error(transparent)]
    Worker(#[from] tributary_worker::Error),
    /// Ranks could not talk.
    #[error(transparent)]
    Comm(#[from] tributary_comm::Error),
    /// The system has no pool of threads to give.
    #[error(transparent)]
    ThreadPool(#[from] rayon::ThreadPoolBuildError),
    /// The operating system failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Error {
    /// The exit code of a process that ends with this error: 64 usage, 65 integrity, 69 rank lost,
    /// 70 a bug, 71 out of memory, 74 disk, 75 deadline, 76 version skew, 78 configuration.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => exit::USAGE,
            Error::Request(failure) => failure.exit_code(),
            Error::Configuration(_) => exit::CONFIGURATION,
            Error::Exhausted { .. } | Error::DeviceMemory { .. } => exit::OUT_OF_MEMORY,
            Error::Disagreement(error) => error.exit_code(),
            Error::Coordinator(error) => error.exit_code(),
            Error::Model(error) => error.exit_code(),
            Error::Worker(error) => error.exit_code(),
            Error::Comm(error) => error.exit_code(),
            Error::Io(_) => exit::DISK,
            Error::Spoilt { .. } | Error::Bug(_) | Error::ThreadPool(_) => exit::BUG,
        }
    }

    /// Whether it is the group's end, which was caused and reported elsewhere: by another rank, or
    /// another thread of this one.
    pub fn is_told_elsewhere(&self) -> bool {
        matches!(self.between_ranks(), Some(tributary_comm::Error::Aborted { .. }))
    }

    fn between_ranks(&self) -> Option<&tributary_comm::Error> {
        match self {
            Error::Comm(error)
            | Error::Model(tributary_model::Error::Comm(error))
            | Error::Worker(tributary_worker::Error::Comm(error))
            | Error::Coordinator(tributary_coordinator::Error::Link(error)) => Some(error),
            _ => None,
        }
    }

    /// Kind of breakage between ranks, where known.
    pub(crate) fn breakage(&self) -> Option<Breakage> {
        match self.between_ranks()? {
            tributary_comm::Error::Timeout { operation, .. } => {
                Some(Breakage::Call { collective: *operation, exit_code: self.exit_code() })
            }
            tributary_comm::Error::Frame(_) => Some(Breakage::Message),
            _ => None,
        }
    }

    /// Something that was asked for cannot be.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Error::Usage(what.into())
    }

    /// Something in the way the program was started or built does not fit.
    pub(crate) fn configuration(what: impl Into<String>) -> Self {
        Error::Configuration(what.into())
    }
}

impl From<tributary_planner::Error> for Error {
    fn from(error: tributary_planner::Error) -> Self {
        Error::Coordinator(error.into())
    }
}

/// A failure in one line, causes included.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    // A file from another source must not move the cursor, or fill the terminal.
    let line = line.chars().filter(|letter| !letter.is_control() && !is_direction(*letter)).collect::<String>();
    match line.char_indices().nth(LINE_LETTERS) {
        Some((end, _)) => format!("{}..", &line[..end]),
        None => line,
    }
}

/// Letters of a failure's line at most.
const LINE_LETTERS: usize = 4000;

/// Whether a letter changes the direction of the following text, so that a line reads as another
/// one.
fn is_direction(letter: char) -> bool {
    matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_and_moves_no_cursor() {
        let error = Error::Usage(format!("a\u{1b}[31mred\u{202e}\r\nb{}", "x".repeat(10_000)));
        let line = one_line(&error);
        assert!(line.starts_with("a[31mred; bxxx") && line.ends_with("x..") && line.len() < 4100, "{line}");
    }

    #[test]
    fn failures_have_the_exit_code_of_their_kind() {
        let io = || std::io::Error::other("no");
        let table = [
            (Error::usage("so"), 64, "so"),
            (Error::configuration("so"), 78, "so"),
            (
                Error::Exhausted { world: 2, threads: 3, cause: io() },
                71,
                "cannot start 2 ranks of 3 threads: no; use fewer",
            ),
            (
                Error::DeviceMemory { needed_bytes: 3 << 30, free_bytes: 2 << 30 },
                71,
                "--device-memory 3.0 GiB: 2.0 GiB are free on the device",
            ),
            (
                Error::Spoilt { cause: "x".to_owned() },
                70,
                "x; the GPU takes no more work from this process: start it again",
            ),
            (Error::Bug("x"), 70, "x"),
            (io().into(), 74, "no"),
            (tributary_worker::Error::Bug("x").into(), 70, "a bug: x"),
            (tributary_planner::Error::EmptyQuery.into(), 64, "the query is empty; ask a question"),
        ];
        for (error, code, line) in table {
            assert_eq!((error.exit_code(), one_line(&error).as_str()), (code, line));
        }
    }
}
