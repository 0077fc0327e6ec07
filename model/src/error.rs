//! Failures of a model and of a pass through it, with their exit codes.

use std::path::PathBuf;

use tributary_kernels::cuda;
use tributary_protocol::exit;

/// Result of a model's work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A model's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the model cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's message.
        cause: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's message.
        cause: std::io::Error,
    },
    /// config.json does not describe a model that this program can run.
    #[error("{}: {what}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The mistake and its correction.
        what: String,
    },
    /// A decoder family that is not built in.
    #[error("{}: architecture `{found}` is not supported; supported are {supported}", path.display())]
    Architecture {
        /// The config file.
        path: PathBuf,
        /// The name found there.
        found: String,
        /// The supported names.
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
        /// The expected shape.
        expected: Vec<usize>,
    },
    /// A tensor's shape differs from the config's.
    #[error("{}: tensor `{name}`: expected shape {expected:?}, found {found:?}", folder.display())]
    WrongShape {
        /// The model folder.
        folder: PathBuf,
        /// Its name.
        name: String,
        /// The shape from the config.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A prompt that is too long for the model.
    #[error("{prompt_tokens} prompt tokens and {max_tokens} to generate exceed the model's {limit} positions")]
    TooLong {
        /// Number of the prompt's tokens.
        prompt_tokens: usize,
        /// Maximum number of tokens to generate.
        max_tokens: usize,
        /// Maximum number of tokens.
        limit: usize,
    },
    /// An input that the model or its adapters lack: a token id, an adapter, one of its rows.
    #[error("{0}")]
    Input(String),
    /// The request was cancelled during its pass; every rank has learnt of it at the same control
    /// point.
    #[error("the request was cancelled")]
    Cancelled,
    /// Other work at a control point of the pass failed.
    #[error("{cause}")]
    Interlude {
        /// Exit code of the failure.
        exit_code: u8,
        /// The failure.
        cause: String,
    },
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
            Error::File { .. }
            | Error::Config { .. }
            | Error::Architecture { .. }
            | Error::TooLong { .. }
            | Error::Input(_) => exit::USAGE,
            Error::Write { .. } => exit::DISK,
            Error::Weights { .. } | Error::MissingTensor { .. } | Error::WrongShape { .. } => exit::INTEGRITY,
            Error::Interlude { exit_code, .. } => *exit_code,
            Error::Comm(error) => error.exit_code(),
            Error::Kernel(error) => error.exit_code(),
            Error::Tensor(error) if cuda::is_out_of_memory(error) => exit::OUT_OF_MEMORY,
            // The client has left and is not told.
            Error::Cancelled => exit::RANK_LOST,
            Error::Tensor(_) => exit::BUG,
        }
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
