//! Requests from the command line: documents and a query, a request file, or random tokens.

use std::path::PathBuf;

use clap::Args;
use tributary_coordinator::{Document, Intake, Piece, Prepared, Request, prepare};

use crate::args::{IntakeArgs, Synthetic};
use crate::failure::usage;
use crate::model::ModelFolder;

/// What is asked.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Request")]
pub struct RequestArgs {
    /// Text files, one document each
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["request", "synthetic"])]
    pub documents: Vec<PathBuf>,
    /// A JSON file: {"documents": [TEXT | {"title", "text"}, ..], "query": TEXT}
    #[arg(long, value_name = "FILE.json", conflicts_with = "synthetic")]
    pub request: Option<PathBuf>,
    /// The question; stands in for a request file's own
    #[arg(long, value_name = "TEXT", conflicts_with = "synthetic")]
    pub query: Option<String>,
}

/// A request to be answered.
pub enum Question {
    /// Text.
    Text(Request),
    /// Random tokens from a seed.
    Random(Synthetic, u64),
}

impl Question {
    /// The request that the options describe.
    ///
    /// # Errors
    /// None given, an unreadable file, an empty query or document.
    pub fn from_args(args: &RequestArgs, intake: &IntakeArgs, seed: u64) -> anyhow::Result<Self> {
        if let Some(shape) = intake.synthetic {
            return Ok(Self::Random(shape, seed));
        }
        if let Some(path) = &args.request {
            let mut request = Request::from_file(path)?;
            if let Some(query) = &args.query {
                request = Request::new(request.documents, query.clone())?;
            }
            return Ok(Self::Text(request));
        }
        if args.documents.is_empty() {
            return Err(usage(
                "no documents: give --documents FILE.. with --query TEXT, --request FILE.json, or --synthetic",
            ));
        }
        let Some(query) = &args.query else { return Err(usage("no query: give --query TEXT")) };
        let documents = args.documents.iter().map(|path| Document::from_file(path)).collect::<Result<_, _>>()?;
        Ok(Self::Text(Request::new(documents, query.clone())?))
    }

    /// The request as token ids.
    ///
    /// # Errors
    /// The tokenizer's; a piece of text without a token.
    pub fn prepare(&self, folder: &ModelFolder, intake: &IntakeArgs) -> anyhow::Result<Prepared> {
        let bos = folder.config.bos;
        match self {
            Question::Random(shape, seed) => {
                let limit = folder.config.max_positions;
                if shape.tokens() > limit {
                    return Err(usage(format!(
                        "--synthetic {shape}: {} tokens, the model has {limit} positions",
                        shape.tokens()
                    )));
                }
                Ok(random(*shape, *seed, folder.config.vocab, bos))
            }
            Question::Text(request) => {
                let tokenizer = folder.tokenizer.as_ref().ok_or_else(|| usage("text needs a tokenizer"))?;
                let template = folder.template.as_ref();
                let (chunking, prefix) = (&intake.chunk, &intake.prefix);
                Ok(prepare(request, &Intake { tokenizer, template, chunking, prefix, bos })?)
            }
        }
    }

    /// The expected answer, where the request names one.
    pub fn expected(&self) -> Option<&str> {
        match self {
            Question::Text(request) => request.answer.as_deref(),
            Question::Random(..) => None,
        }
    }
}

/// Token ids drawn uniformly from the vocabulary.
fn random(shape: Synthetic, seed: u64, vocab: usize, bos: Option<u32>) -> Prepared {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut draw = || {
        // splitmix64: any fixed, well mixed sequence would do.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % vocab as u64) as u32
    };
    let mut ids = |count: usize| -> Vec<u32> { (0..count).map(|_| draw()).collect() };
    let chunk = |ids: Vec<u32>| Piece { ids, ..Piece::default() };
    Prepared {
        prefix: vec![bos.unwrap_or(0)],
        chunks: (0..shape.chunks).map(|_| chunk(ids(shape.chunk_tokens))).collect(),
        query: ids(shape.query_tokens),
        notes: vec!["synthetic request: random token ids from the seed".to_owned()],
    }
}
