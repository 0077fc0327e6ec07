//! Requests from the command line: documents and a query, a request file, or random tokens.

use std::path::PathBuf;

use clap::Args;
use tributary_engine::{Question, Synthetic};

/// The request.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Request")]
pub struct RequestArgs {
    /// Text or picture files, one document each
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["request", "synthetic"])]
    pub documents: Vec<PathBuf>,
    /// JSON file: {"documents": [TEXT | {"title", "text" | "image"}, ..], "query": TEXT}
    #[arg(long, value_name = "FILE.json", conflicts_with = "synthetic")]
    pub request: Option<PathBuf>,
    /// Question; overrides the request file's query
    #[arg(long, value_name = "TEXT", conflicts_with = "synthetic")]
    pub query: Option<String>,
}

impl RequestArgs {
    /// The request that the options describe; random tokens from the seed where a shape of them is
    /// given.
    ///
    /// # Errors
    /// Returns an error if none is given, if a file is unreadable, or if a query or document is
    /// empty.
    pub fn question(&self, synthetic: Option<Synthetic>, seed: u64) -> anyhow::Result<Question> {
        if let Some(shape) = synthetic {
            return Ok(Question::Random(shape, seed));
        }
        let (request, query) = (self.request.as_deref(), self.query.as_deref());
        Ok(Question::from_files(&self.documents, request, query)?)
    }
}
