//! What a suite is: cells, which are tasks at a length and a depth, and for each number in a cell one sample, which follows from that
//! and from nothing else.

use std::cell::{self, RefCell};
use std::collections::HashMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_coordinator::{Document, Request, Tokenizer};
use tributary_engine::{Led, Question};

use crate::error::Result;
use crate::score::Metric;

/// A task, at a length and a depth where its suite has such.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// The task.
    pub task: String,
    /// Tokens of prompt and answer, at most; absent where nobody asks for a length.
    pub length: Option<usize>,
    /// Where in the context the needed fact stands, in per cent; absent where nobody asks for a depth.
    pub depth: Option<usize>,
    /// Tokens of a chunk, at most, or of a document of `hops`; absent where nobody asks for several sizes.
    pub chunk_tokens: Option<usize>,
}

impl Cell {
    /// A task without length and depth.
    pub fn of(task: &str) -> Self {
        Self { task: task.to_owned(), length: None, depth: None, chunk_tokens: None }
    }

    /// A task at a length.
    pub fn at(task: &str, length: usize) -> Self {
        Self { length: Some(length), ..Self::of(task) }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.task)?;
        self.length.map_or(Ok(()), |length| write!(f, " at {length}"))?;
        self.depth.map_or(Ok(()), |depth| write!(f, " deep {depth} %"))?;
        self.chunk_tokens.map_or(Ok(()), |tokens| write!(f, " in chunks of {tokens}"))
    }
}

/// How an answer is scored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scoring {
    /// By what.
    pub metric: Metric,
    /// What a right answer says.
    pub references: Vec<String>,
    /// All classes of a classification; empty for other metrics.
    pub classes: Vec<String>,
    /// Whether only the answer's first line counts.
    pub first_line: bool,
}

impl Scoring {
    /// By a metric without classes, all of the answer.
    pub fn new(metric: Metric, references: Vec<String>) -> Self {
        Self { metric, references, classes: Vec::new(), first_line: false }
    }

    /// The score of an answer, from 0 to 1.
    pub fn score(&self, answer: &str) -> f64 {
        let line = answer.trim_start_matches('\n').split('\n').next().unwrap_or_default();
        self.metric.score(if self.first_line { line } else { answer }, &self.references, &self.classes)
    }
}

/// A request of a task, and how its answer is scored. The whole prompt is lead, chunks and query, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Stands before the context; all chunks see it.
    pub lead: String,
    /// The context: each text is a chunk of its own.
    pub chunks: Vec<String>,
    /// Stands behind the context.
    pub query: String,
    /// What the answer begins with: the model goes on behind it.
    pub begun: String,
    /// Whether the model's chat template stands around it.
    pub uses_template: bool,
    /// How its answer is scored.
    pub scoring: Scoring,
    /// Tokens of the answer, at most.
    pub answer_tokens: usize,
    /// Its name in the file that it comes from, if it comes from one and has a name there.
    pub id: Option<String>,
}

impl Sample {
    /// What a model is asked.
    ///
    /// # Errors
    /// A chunk or a query without text.
    pub fn question(&self) -> Result<Question> {
        let documents = self.chunks.iter().map(|text| Document { title: None, text: text.clone() }).collect();
        let request = Request::new(documents, self.query.clone())?;
        let (lead, begun) = (self.lead.clone(), self.begun.clone());
        Ok(Question::Led(Led { lead, request, begun, uses_template: self.uses_template }))
    }

    /// A hash of all that the model is shown, as hexadecimal digits.
    pub fn hash(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for text in [&self.lead].into_iter().chain(&self.chunks).chain([&self.query, &self.begun]) {
            hash.update(text.as_bytes()).update(&[0]);
        }
        hash.finalize().to_hex()[..32].to_owned()
    }
}

/// Counts tokens as the model's tokenizer does.
pub struct Measure<'a> {
    count: &'a dyn Fn(&str) -> Result<usize>,
    /// Tokens around a prompt: the first one, and the chat template's.
    around: cell::Cell<usize>,
    known: RefCell<HashMap<String, usize>>,
}

/// Texts of so many bytes at most are remembered with their tokens: sentences and words come again and again.
const REMEMBERED_BYTES: usize = 512;

/// The most texts that are remembered: then all are forgotten, since lines that are drawn do not come again.
const REMEMBERED: usize = 1 << 16;

impl<'a> Measure<'a> {
    /// Counts by `count`; nothing stands around a prompt.
    pub fn new(count: &'a dyn Fn(&str) -> Result<usize>) -> Self {
        Self { count, around: cell::Cell::default(), known: RefCell::default() }
    }

    /// The tokens that stand around a prompt.
    pub fn around(&self) -> usize {
        self.around.get()
    }

    /// From now on so many tokens stand around a prompt.
    pub fn set_around(&self, tokens: usize) {
        self.around.set(tokens);
    }

    /// Tokens of a text that is encoded on its own.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn tokens(&self, text: &str) -> Result<usize> {
        if text.len() > REMEMBERED_BYTES {
            return (self.count)(text);
        }
        if let Some(&tokens) = self.known.borrow().get(text) {
            return Ok(tokens);
        }
        let tokens = (self.count)(text)?;
        let mut known = self.known.borrow_mut();
        if known.len() == REMEMBERED {
            known.clear();
        }
        known.insert(text.to_owned(), tokens);
        Ok(tokens)
    }

    /// Tokens of a sample's prompt and of the longest answer to it.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn length(&self, sample: &Sample) -> Result<usize> {
        let mut sum = self.around.get() + sample.answer_tokens;
        for text in [&sample.lead, &sample.query, &sample.begun].into_iter().chain(&sample.chunks) {
            sum += self.tokens(text)?;
        }
        Ok(sum)
    }
}

/// Tasks that belong together, opened with all that their samples need.
pub trait Suite {
    /// What its texts are made of, a line each, for the reader of a report.
    fn made_of(&self) -> Vec<String>;

    /// Its cells in the order of tables. There is at least one.
    fn cells(&self) -> Vec<Cell>;

    /// The samples that a cell has at most; absent where there is no end to them.
    fn most_samples(&self, _cell: &Cell) -> Option<usize> {
        None
    }

    /// Whether a length makes contexts shorter that are longer.
    fn cuts_contexts(&self) -> bool {
        false
    }

    /// Whether in a task's requests the answer takes a reference from one document to another (true), or documents whose order carries
    /// it and of which none refers to another (false); absent where it takes neither, or where that is not known.
    fn refers(&self, _task: &str) -> Option<bool> {
        None
    }

    /// Whether a model can be asked at all; `model` is its folder, for messages.
    ///
    /// # Errors
    /// What is missing.
    fn check(&self, _model: &str, _tokenizer: &Tokenizer) -> Result<()> {
        Ok(())
    }

    /// The sample of a number, below [`most_samples`](Self::most_samples), in one of its cells. In a cell with a length it has so many tokens at most.
    ///
    /// # Errors
    /// A length into which the task does not fit, with the length that it needs; the tokenizer's.
    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample>;
}
