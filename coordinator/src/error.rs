//! What can go wrong between a request and its answer, and the exit code that stands for it.

use std::path::PathBuf;

use tributary_protocol::{Refusal, exit};

/// Result of the coordinator's steps.
pub type Result<T> = std::result::Result<T, Error>;

/// A request that cannot be served, or was not. Each message says in one line what is wrong and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {path}: {cause}; name a readable file")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// A file is not the JSON that it should be.
    #[error("{path}, line {line}, column {column}: {cause}")]
    Json {
        /// Which file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong there.
        cause: String,
    },
    /// A document, a request or a line of a file has more bytes than any may have.
    #[error("{}{}: more than {} MiB; split it", path.display(), line.map(|line| format!(", line {line}")).unwrap_or_default(), most_bytes >> 20)]
    TooLong {
        /// Which file.
        path: PathBuf,
        /// From 1, if the file's lines are read one by one.
        line: Option<usize>,
        /// How many it may have.
        most_bytes: u64,
    },
    /// A line of a file of requests is no request.
    #[error("{path}, line {line}: {cause}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong there.
        cause: Box<Error>,
    },
    /// A file of requests has none.
    #[error("{path} has no requests; it needs one JSON object a line")]
    NoRequests {
        /// Which file.
        path: PathBuf,
    },
    /// The query has no text.
    #[error("the query is empty; ask a question")]
    EmptyQuery,
    /// The request has no documents.
    #[error("no documents; a request needs at least one")]
    NoDocuments,
    /// A document has no text.
    #[error("document {number} of {count} is empty; every document needs text")]
    EmptyDocument {
        /// Which one, from 1.
        number: usize,
        /// How many there are.
        count: usize,
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
    /// A date cannot be written as it was asked for.
    #[error("the date `{format}`: {cause}")]
    Date {
        /// The `strftime` format.
        format: String,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// A setting has a value that it cannot have.
    #[error("{name} {found}: {wanted}")]
    Setting {
        /// The setting, as on the command line.
        name: &'static str,
        /// Its value.
        found: String,
        /// What would be right.
        wanted: String,
    },
    /// A text has more tokens than a request to the model may have; it was not read to its end.
    #[error("the request has more than {most} tokens, which this model does not take at once; shorten the request")]
    MoreTokens {
        /// How many it may have.
        most: usize,
    },
    /// The request cannot be planned.
    #[error(transparent)]
    Plan(#[from] tributary_planner::Error),
    /// A rank failed and with it the group.
    #[error("rank {rank} failed: {cause}")]
    Failed {
        /// The rank that failed first.
        rank: usize,
        /// The exit code that stands for the cause.
        exit_code: u8,
        /// Why.
        cause: String,
    },
    /// One request failed; the ranks live on.
    #[error("{}", .0.cause)]
    Refused(Refusal),
    /// The workers' messages make no sense.
    #[error("the workers broke the protocol: {0}")]
    Protocol(String),
    /// The channel to the workers failed.
    #[error("channel to the workers: {0}")]
    Link(#[from] tributary_comm::Error),
}

impl Error {
    /// The exit code of a process that ends with this error: 64 usage, 69 rank lost, 70 a bug, 71 out of memory,
    /// 75 deadline, or what the failed rank reported.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Unreadable { .. }
            | Error::TooLong { .. }
            | Error::Json { .. }
            | Error::Line { .. }
            | Error::NoRequests { .. }
            | Error::EmptyQuery
            | Error::NoDocuments
            | Error::EmptyDocument { .. }
            | Error::Tokenizer(_)
            | Error::Template(_)
            | Error::Conversation(_)
            | Error::Date { .. }
            | Error::Setting { .. }
            | Error::MoreTokens { .. } => exit::USAGE,
            Error::Untokenizable(_) => exit::INTEGRITY,
            Error::Link(error) => error.exit_code(),
            Error::Protocol(_) => exit::BUG,
            Error::Plan(error) => error.exit_code(),
            Error::Failed { exit_code, .. } => *exit_code,
            Error::Refused(refusal) => refusal.exit_code,
        }
    }
}

/// A setting that cannot be as it was `found`, and what is `wanted` in its stead.
pub(crate) fn setting(name: &'static str, found: impl ToString, wanted: impl Into<String>) -> Error {
    Error::Setting { name, found: found.to_string(), wanted: wanted.into() }
}
