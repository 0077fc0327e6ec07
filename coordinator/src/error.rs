//! Failures between a request and its answer, and their exit codes.

use std::path::PathBuf;

pub(crate) use tributary_planner::Error as PlanError;
use tributary_protocol::{Refusal, exit};

/// Result of the coordinator's steps.
pub type Result<T> = std::result::Result<T, Error>;

/// A request that cannot be served, or was not. Each message names the fault and the remedy in one
/// line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is not the expected JSON.
    #[error("{path}, line {line}, column {column}: {cause}")]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Description of the fault.
        cause: String,
    },
    /// A line of a file of requests is not a request.
    #[error("{path}, line {line}: {cause}")]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Description of the fault.
        cause: Box<Error>,
    },
    /// A file of requests has none.
    #[error("{path} has no requests; it needs one JSON object a line")]
    NoRequests {
        /// Path of the file.
        path: PathBuf,
    },
    /// The tokenizer cannot be loaded or fails.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The tokenizer gives up on a text.
    #[error("this text cannot be tokenized: {0}")]
    Untokenizable(String),
    /// The model's chat template cannot be read or rendered.
    #[error("chat template: {0}; `--template none` goes without it")]
    Template(String),
    /// The chat template refuses a conversation, in its own words.
    #[error("the model's chat template refuses these messages: {0}")]
    Conversation(String),
    /// A date cannot be written in the given format.
    #[error("the date `{format}`: {cause}")]
    Date {
        /// The `strftime` format.
        format: String,
        /// Description of the fault.
        cause: &'static str,
    },
    /// A text has more tokens than a request to the model may have; the rest was not read.
    #[error("the request has more than {most} tokens, which this model does not take at once; shorten the request")]
    MoreTokens {
        /// Maximum number of tokens.
        most: usize,
    },
    /// A picture cannot be read.
    #[error("{name}: {cause}")]
    Picture {
        /// The picture's name, such as `document 2`.
        name: String,
        /// Description of the fault.
        cause: tributary_pictures::Error,
    },
    /// The model has no vision tower.
    #[error("this model reads no pictures")]
    NoPictures,
    /// Pictures stand where a picture cannot be.
    #[error("pictures are not supported {0}")]
    PicturesThere(&'static str),
    /// A text or a list of token ids has a token that stands for a row of a picture.
    #[error("token id {id} stands for a row of a picture: send the picture itself, as a document")]
    PictureMark {
        /// The token.
        id: u32,
    },
    /// The request cannot be planned, or one of its texts or settings cannot be used.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A rank failed and with it the group.
    #[error("rank {rank} failed: {cause}")]
    Failed {
        /// The rank that failed first.
        rank: usize,
        /// Exit code of the cause.
        exit_code: u8,
        /// Description of the cause.
        cause: String,
    },
    /// One request failed; the ranks live on.
    #[error("{}", .0.cause)]
    Refused(Refusal),
    /// The workers' messages are inconsistent.
    #[error("the workers broke the protocol: {0}")]
    Protocol(String),
    /// The channel to the workers failed.
    #[error("channel to the workers: {0}")]
    Link(#[from] tributary_comm::Error),
}

impl Error {
    /// Exit code of a process that ends with this error: 64 usage, 69 rank lost, 70 a bug, 71 out
    /// of memory, 75 deadline, or the failed rank's code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Json { .. }
            | Error::Line { .. }
            | Error::NoRequests { .. }
            | Error::Tokenizer(_)
            | Error::Template(_)
            | Error::Conversation(_)
            | Error::Date { .. }
            | Error::MoreTokens { .. }
            | Error::Picture { .. }
            | Error::NoPictures
            | Error::PicturesThere(_)
            | Error::PictureMark { .. } => exit::USAGE,
            Error::Untokenizable(_) => exit::INTEGRITY,
            Error::Link(error) => error.exit_code(),
            Error::Protocol(_) => exit::BUG,
            Error::Plan(error) => error.exit_code(),
            Error::Failed { exit_code, .. } => *exit_code,
            Error::Refused(refusal) => refusal.exit_code,
        }
    }
}

/// A setting with an invalid value `found`; `wanted` describes the valid ones.
pub(crate) fn setting(name: &'static str, found: impl ToString, wanted: impl Into<String>) -> Error {
    PlanError::Setting { name, found: found.to_string(), wanted: wanted.into() }.into()
}
