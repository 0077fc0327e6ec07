//! Why a request cannot be planned, and the exit code that stands for it.

use std::path::PathBuf;

use tributary_methods::InvalidOption;
use tributary_protocol::exit;
use tributary_system::size::rounded;

use crate::MemoryOf;

/// A method's parameter that cannot be.
impl From<InvalidOption> for Error {
    fn from(wrong: InvalidOption) -> Self {
        Error::Setting { name: "--method", found: wrong.found, wanted: wrong.wanted }
    }
}

/// Result of planning.
pub type Result<T> = std::result::Result<T, Error>;

/// A request that cannot be planned. Each message says in one line what is wrong and what would be
/// right.
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
    /// A file, or a line of one, has more bytes than any may have.
    #[error("{}{}: more than {} MiB; split it", path.display(), line.map(|line| format!(", line {line}")).unwrap_or_default(), most_bytes >> 20)]
    TooLong {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1, if the file is read line by line.
        line: Option<usize>,
        /// How many it may have.
        most_bytes: u64,
    },
    /// A file is not the TOML that it should be.
    #[error("{path}, line {line}, column {column}: {cause}")]
    Toml {
        /// Which file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong there.
        cause: String,
    },
    /// There is no such machine profile.
    #[error("unknown profile `{name}`: one of {known}, or the path of a .toml file")]
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// Those there are.
        known: String,
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
    /// No other program can decode with the keys and values of this request.
    #[error("the keys and values of {method} cannot be handed over: {cause}")]
    HandOver {
        /// The method.
        method: &'static str,
        /// Why.
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
    /// The model has fewer positions than the request needs.
    #[error(
        "{prompt_tokens} prompt tokens and {max_tokens} to generate are {} positions, the model has {limit}; \
         shorten the request",
        prompt_tokens.saturating_add(*max_tokens)
    )]
    TooManyTokens {
        /// Prefix, context and query.
        prompt_tokens: usize,
        /// Tokens to generate at most.
        max_tokens: usize,
        /// The model's maximum.
        limit: usize,
    },
    /// The request would need more memory than there is.
    #[error(
        "{}; use fewer tokens, bf16, or the method's option exchange=pass-q",
        shortage("the request needs", *of, *rank, *needed_bytes, *available_bytes)
    )]
    Memory {
        /// Whose memory.
        of: MemoryOf,
        /// The rank that has so little, if it is not the planner's own.
        rank: Option<usize>,
        /// Predicted from the plan.
        needed_bytes: u64,
        /// What the machine has to give.
        available_bytes: u64,
    },
    /// The weights alone would need more memory than there is.
    #[error(
        "{}; use bf16 or a smaller model",
        shortage("the weights need", *of, *rank, *needed_bytes, *available_bytes)
    )]
    MemoryOfWeights {
        /// Whose memory.
        of: MemoryOf,
        /// The rank that has so little, if it is not the planner's own.
        rank: Option<usize>,
        /// The weights', as often as they are loaded, and the program's own.
        needed_bytes: u64,
        /// What the machine has to give.
        available_bytes: u64,
    },
}

/// Too little memory, with both numbers.
fn shortage(who: &str, of: MemoryOf, rank: Option<usize>, needed_bytes: u64, available_bytes: u64) -> String {
    let (memory, option) = match of {
        MemoryOf::Host => ("memory", ""),
        MemoryOf::Device => ("device memory", " (--device-memory)"),
    };
    let to = rank.map_or_else(String::new, |rank| format!(" to rank {rank}"));
    let (needed, available) = (rounded(needed_bytes), rounded(available_bytes));
    format!("{who} about {needed} of {memory}, {available} are available{to}{option}")
}

impl Error {
    /// The exit code of a process that ends with this error: 64 usage, 71 out of memory.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Unreadable { .. }
            | Error::TooLong { .. }
            | Error::Toml { .. }
            | Error::UnknownProfile { .. }
            | Error::EmptyQuery
            | Error::NoDocuments
            | Error::EmptyDocument { .. }
            | Error::HandOver { .. }
            | Error::Setting { .. }
            | Error::TooManyTokens { .. } => exit::USAGE,
            Error::Memory { .. } | Error::MemoryOfWeights { .. } => exit::OUT_OF_MEMORY,
        }
    }
}

/// A setting that cannot be as it was `found`, and what is `wanted` in its stead.
pub(crate) fn setting(name: &'static str, found: impl ToString, wanted: impl Into<String>) -> Error {
    Error::Setting { name, found: found.to_string(), wanted: wanted.into() }
}
