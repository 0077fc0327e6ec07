//! The failures of a rank, and the exit codes that stand for them.

use std::path::PathBuf;

use tributary_kernels::cuda;
use tributary_protocol::{Refusal, exit};

/// Result of a rank's work.
pub type Result<T> = std::result::Result<T, Error>;

/// A rank's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the model cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's own words.
        cause: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's own words.
        cause: std::io::Error,
    },
    /// config.json does not describe a model that this program can run.
    #[error("{}: {what}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The mistake, and what would be right.
        what: String,
    },
    /// A decoder family that is not built in.
    #[error("{}: architecture `{found}` is not supported; supported are {supported}", path.display())]
    Architecture {
        /// The config file.
        path: PathBuf,
        /// The name found there.
        found: String,
        /// The names that would do.
        supported: String,
    },
    /// A weight file is damaged.
    #[error("{}: {what}", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// The weights lack a tensor.
    #[error("{}: no tensor `{name}` of shape {expected:?}", folder.display())]
    MissingTensor {
        /// The model folder.
        folder: PathBuf,
        /// Its name.
        name: String,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the config says.
    #[error("{}: tensor `{name}`: expected shape {expected:?}, found {found:?}", folder.display())]
    WrongShape {
        /// The model folder.
        folder: PathBuf,
        /// Its name.
        name: String,
        /// The shape the config asks for.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// Numbers that are not finite where they must be: the weights are damaged or overflowed.
    #[error("{what} hold NaN or infinite values on rank {rank}: the weights are damaged, or the dtype overflows")]
    NotFinite {
        /// The numbers in question.
        what: &'static str,
        /// The rank that found them.
        rank: usize,
    },
    /// A prompt that is too long for the model.
    #[error("{prompt_tokens} prompt tokens and {max_tokens} to generate exceed the model's {what} of {limit} tokens")]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens to generate at most.
        max_tokens: usize,
        /// The most tokens that there may be.
        limit: usize,
        /// The part of the model that sets the limit.
        what: &'static str,
    },
    /// A plan that does not fit this rank's model or world.
    #[error("plan: {0}")]
    Plan(String),
    /// A request's own failure that another rank has found and told to all.
    #[error("{}", .0.cause)]
    Refused(Refusal),
    /// The request was let go of while it was prefilled; every rank has learnt it at the same place.
    #[error("the request was cancelled")]
    Cancelled,
    /// A state that only a mistake in this program can bring about.
    #[error("a bug: {0}")]
    Bug(&'static str),
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
    /// The exit code that stands for this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::File { .. }
            | Error::Config { .. }
            | Error::Architecture { .. }
            | Error::TooLong { .. }
            | Error::Plan(_) => exit::USAGE,
            Error::Write { .. } => exit::DISK,
            Error::Weights { .. }
            | Error::MissingTensor { .. }
            | Error::WrongShape { .. }
            | Error::NotFinite { .. } => exit::INTEGRITY,
            Error::Refused(refusal) => refusal.exit_code,
            Error::Comm(error) => error.exit_code(),
            Error::Kernel(error) => error.exit_code(),
            Error::Tensor(error) if cuda::is_out_of_memory(error) => exit::OUT_OF_MEMORY,
            // Nobody is told: whoever asked has left.
            Error::Cancelled => exit::RANK_LOST,
            Error::Tensor(_) | Error::Bug(_) => exit::BUG,
        }
    }

    /// Whether the failure is one request's own and every rank has learnt it alike, from the plan or from a collective: then the
    /// ranks are still in step, and the group can go on without the request.
    pub fn is_the_requests(&self) -> bool {
        matches!(
            self,
            Error::NotFinite { .. } | Error::TooLong { .. } | Error::Plan(_) | Error::Refused(_) | Error::Cancelled
        )
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

impl From<tributary_protocol::Error> for Error {
    fn from(error: tributary_protocol::Error) -> Self {
        Error::Comm(error.into())
    }
}
