//! Design of an evaluation: a suite with its tasks and their shape, the number of samples, and the
//! methods that answer them.

use std::path::PathBuf;
use tributary_methods::ModelFacts;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_engine::RunConfig;
use tributary_planner::RequestSettings;
use tributary_protocol::{Eviction, Family};

use crate::error::{Error, Result};
use crate::split::{Part, Split};

/// The most samples of a task, and documents of a sample, and tokens of a document, and tokens of a
/// length.
const MOST: usize = 100_000_000;

/// Layers and KV heads of the model with which a method is asked for its family, which is the same
/// for all models.
const ANY_MODEL: ModelFacts = ModelFacts::new(32, 8);

/// A user's request for an evaluation. Absent or empty options take the suite's values; options
/// that a suite does not take are refused.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// The suite's name, or a file of rows.
    pub suite: String,
    /// Some of its tasks.
    pub tasks: Vec<String>,
    /// Requests of each task, length and depth.
    pub samples: usize,
    /// Seed of the requests, of the order of methods, and of the intervals.
    pub seed: u64,
    /// Documents of a request.
    pub documents: Option<usize>,
    /// Tokens of each document, at most; of several each is asked on its own.
    pub document_tokens: Vec<usize>,
    /// Tokens of prompt and answer.
    pub lengths: Vec<usize>,
    /// Places of the needed fact, in per cent of the context.
    pub depths: Vec<usize>,
    /// Tokens of a chunk, at most; of several each is asked on its own.
    pub chunk_tokens: Vec<usize>,
    /// The folder of data that is not part of the program.
    pub data: Option<PathBuf>,
    /// A text, or a JSON object with `text`, for haystacks.
    pub essays: Option<PathBuf>,
    /// Questions in SQuAD's format.
    pub squad: Option<PathBuf>,
    /// The part of the sources that texts come from.
    pub split: Split,
    /// Whether the methods of a request share its chunks.
    pub warm: bool,
    /// Number of ranks.
    pub world: usize,
    /// Threads of each rank.
    pub threads: usize,
    /// Published numbers that the evaluation reproduces, for the reader.
    pub reproduces: Option<String>,
}

/// Design of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Design {
    /// The suite.
    pub suite: String,
    /// Sources of its texts.
    pub made_of: Vec<String>,
    /// Its tasks, in the order asked for.
    pub tasks: Vec<String>,
    /// Requests of each task, length and depth, at most: a file may have fewer.
    pub samples: usize,
    /// Seed of the requests, of the order of methods, and of the intervals.
    pub seed: u64,
    /// Number of documents of a request; absent where not set.
    pub documents: Option<usize>,
    /// Maximum tokens of each document; absent where not set, or where several are.
    pub document_tokens: Option<usize>,
    /// Maximum tokens of prompt and answer together; empty where not set.
    pub lengths: Vec<usize>,
    /// Places of the needed fact, in per cent of the context; empty where not set.
    pub depths: Vec<usize>,
    /// Tokens of a chunk, at most; absent where the suite's own holds, or several were asked for.
    pub chunk_tokens: Option<usize>,
    /// Sizes of chunks, or of documents of `hops`; every request is asked with each. Empty where
    /// there is one size only.
    pub chunk_sizes: Vec<usize>,
    /// The part of the sources that texts come from.
    pub split: Part,
    /// Salt of the hash that divides the sources; absent where all are used.
    pub split_salt: Option<String>,
    /// Whether the methods of a request share its chunks: the first one computes them, so that
    /// times to first token do not compare.
    pub warm: bool,
    /// Number of ranks.
    pub world: usize,
    /// Threads of each rank.
    pub threads: usize,
    /// Published numbers that the evaluation reproduces, in words; absent where not given.
    pub reproduces: Option<String>,
}

/// A method with a ratio, as it answers requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    /// The method and its options, as asked for.
    pub method: String,
    /// The same method without eviction: it may differ only in the rows that decoding keeps.
    pub behind: String,
    /// The share of the context that it recomputes; absent where it has none.
    pub ratio: Option<f64>,
    /// Settings of its runs.
    pub run_config: RunConfig,
}

impl Arm {
    /// A method as it was asked for, and how it runs.
    pub fn new(method: String, run_config: RunConfig) -> Self {
        let settings = &run_config.settings;
        let ratio = settings.method.ratio.map(|own| settings.ratio.unwrap_or(own));
        let evicts = |part: &&str| ["evict=", "keep=", "window="].iter().any(|option| part.starts_with(option));
        let behind = method.split(':').filter(|part| !evicts(part)).collect::<Vec<_>>().join(":");
        Self { method, behind, ratio, run_config }
    }

    /// The method with its ratio, for a reader.
    pub fn label(&self) -> String {
        labelled(&self.method, self.ratio)
    }

    /// Whether decoding keeps some rows of the prompt only.
    pub fn evicts(&self) -> bool {
        self.run_config.settings.eviction.method.is_some()
    }

    /// Whether it keeps the rows that the answer itself attends to.
    pub fn is_ideal(&self) -> bool {
        self.run_config.settings.eviction.method == Some(Eviction::Ideal)
    }

    /// The method that its eviction follows, and the size that it keeps: evictions that agree in
    /// both are compared with each other.
    pub fn keeping(&self) -> (String, String) {
        let keep = self.run_config.settings.eviction.keep.map_or_else(String::new, |keep| keep.to_string());
        (format!("{} at {:?}", self.behind, self.ratio), keep)
    }

    /// The family of its method.
    pub fn family(&self) -> Family {
        let usual = RequestSettings { method: self.run_config.settings.method, ..RequestSettings::default() };
        usual.method(ANY_MODEL).expect("usual settings make every method").0.family()
    }

    /// Whether it equals full prefill but for rounding.
    pub fn is_exact(&self) -> bool {
        self.run_config.settings.method.is_exact()
    }
}

/// A method with its ratio, for a reader.
pub(crate) fn labelled(method: &str, ratio: Option<f64>) -> String {
    ratio.map_or_else(|| method.to_owned(), |ratio| format!("{method} at {ratio}"))
}

impl Asked {
    /// Checks the rules of every suite.
    ///
    /// # Errors
    /// Returns an error if a number is out of range.
    pub fn check(&self) -> Result<()> {
        let Self { samples, threads, .. } = *self;
        at_least("--samples", samples, 1)?;
        at_least("--threads", threads, 1)?;
        self.split.check()?;
        self.chunk_tokens.iter().try_for_each(|&tokens| at_least("--chunk-tokens", tokens, 1))?;
        self.lengths.iter().try_for_each(|&length| at_least("--lengths", length, 1))?;
        match self.depths.iter().find(|depth| **depth > 100) {
            Some(depth) => Err(Error::usage(format!("--depths {depth}: from 0 to 100, in per cent of the context"))),
            None => Ok(()),
        }
    }
}

/// The tasks asked for, each once, or all where none is named.
///
/// # Errors
/// Returns an error if the name is unknown, with the known names.
pub(crate) fn chosen(suite: &str, asked: &[String], known: &[impl AsRef<str>]) -> Result<Vec<String>> {
    let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    if asked.is_empty() {
        return Ok(known.iter().map(|&name| name.to_owned()).collect());
    }
    let mut tasks: Vec<String> = Vec::new();
    for name in asked {
        if !known.contains(&name.as_str()) {
            return Err(Error::usage(format!("--tasks {name}: unknown; {suite} has {}", known.join(", "))));
        }
        if !tasks.contains(name) {
            tasks.push(name.clone());
        }
    }
    Ok(tasks)
}

/// Numbers, each once, in their order; `own` where none is named.
pub(crate) fn numbers(asked: &[usize], own: &[usize]) -> Vec<usize> {
    let mut numbers: Vec<usize> = if asked.is_empty() { own.to_vec() } else { asked.to_vec() };
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// A number within its bounds.
///
/// # Errors
/// Returns an error if the number is out of its bounds.
pub(crate) fn at_least(option: &str, number: usize, least: usize) -> Result<()> {
    match number {
        _ if number < least => Err(Error::usage(format!("{option} {number}: must be at least {least}"))),
        _ if number > MOST => Err(Error::usage(format!("{option} {number}: at most {MOST}"))),
        _ => Ok(()),
    }
}
