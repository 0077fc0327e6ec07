//! Interface of a suite: cells, which are tasks at a length and a depth, and for each number in a
//! cell one sample, which follows from these alone.

use std::cell::{self, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_coordinator::{Detail, Document, DocumentPart, ImageTiles, PictureFile, Request, Tokenizer};
use tributary_engine::{Led, Question};
use tributary_pictures::Encoded;

use crate::error::Result;
use crate::score::Metric;

/// A task, at a length and a depth where its suite has such.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// The task.
    pub task: String,
    /// Maximum tokens of prompt and answer; absent where no length is set.
    pub length: Option<usize>,
    /// Place of the needed fact in the context, in per cent; absent where no depth is set.
    pub depth: Option<usize>,
    /// Maximum tokens of a chunk, or of a document of `hops`; absent where there is one size only.
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

/// Scoring of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scoring {
    /// Metric.
    pub metric: Metric,
    /// References of a right answer.
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

/// A request of a task, and the scoring of its answer. The whole prompt is lead, chunks and query,
/// one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Text before the context; all chunks see it.
    pub lead: String,
    /// The context: each text is one chunk.
    pub chunks: Vec<String>,
    /// Pictures that take the place of chunks' texts.
    pub pages: Vec<Page>,
    /// Text after the context.
    pub query: String,
    /// Beginning of the answer: the model continues it.
    pub begun: String,
    /// Whether the model's chat template surrounds it.
    pub uses_template: bool,
    /// Scoring of its answer.
    pub scoring: Scoring,
    /// Tokens of the answer, at most.
    pub answer_tokens: usize,
    /// Its name in the file that it comes from, if it comes from one and has a name there.
    pub id: Option<String>,
}

/// A picture of a chunk's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Number of the chunk.
    pub chunk: usize,
    /// A PNG file.
    pub png: Vec<u8>,
    /// Tiles along each side, each a chunk; the same for all pictures of a sample.
    pub tiles: ImageTiles,
}

impl Page {
    fn document(&self) -> Result<Document> {
        let encoded = Encoded { declared: None, file: self.png.clone() };
        let file = PictureFile::new(format!("page {}", self.chunk + 1), encoded, Detail::Full)?;
        Ok(Document::of_parts(None, [DocumentPart::Picture(Arc::new(file))]))
    }
}

impl Sample {
    /// Question to a model.
    ///
    /// # Errors
    /// Returns an error if a chunk or a query has no text, or if a picture is damaged.
    pub fn question(&self) -> Result<Question> {
        let mut documents: Vec<Document> = self.chunks.iter().map(Document::of_text).collect();
        for page in &self.pages {
            documents[page.chunk] = page.document()?;
        }
        let request = Request::new(documents, self.query.clone())?;
        let (lead, begun, tiles) = (self.lead.clone(), self.begun.clone(), self.pages.first().map(|page| page.tiles));
        Ok(Question::Led(Led { lead, request, begun, uses_template: self.uses_template, tiles }))
    }

    /// A hash of all that the model is shown, as hexadecimal digits.
    pub fn hash(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for text in [&self.lead].into_iter().chain(&self.chunks).chain([&self.query, &self.begun]) {
            hash.update(text.as_bytes()).update(&[0]);
        }
        for page in &self.pages {
            hash.update(&page.png).update(&[page.tiles.count()]);
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

/// Maximum bytes of texts whose numbers of tokens are cached: sentences and words come again and
/// again.
const REMEMBERED_BYTES: usize = 512;

/// The most texts that are remembered: then all are forgotten, since lines that are drawn do not
/// come again.
const REMEMBERED: usize = 1 << 16;

impl<'a> Measure<'a> {
    /// Counts by `count`, with no tokens around a prompt.
    pub fn new(count: &'a dyn Fn(&str) -> Result<usize>) -> Self {
        Self { count, around: cell::Cell::default(), known: RefCell::default() }
    }

    /// Number of tokens around a prompt.
    pub fn around(&self) -> usize {
        self.around.get()
    }

    /// Sets the number of tokens around a prompt.
    pub fn set_around(&self, tokens: usize) {
        self.around.set(tokens);
    }

    /// Tokens of a text that is encoded on its own.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
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
    /// Returns an error if the tokenizer fails.
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
    /// Sources of its texts, a line each, for the reader of a report.
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

    /// Whether the answer of a task's requests needs a reference from one document to another
    /// (true), or the order of documents without references (false); absent where it needs neither,
    /// or where that is unknown.
    fn refers(&self, _task: &str) -> Option<bool> {
        None
    }

    /// Whether a model can be asked at all; `model` is its folder, for messages.
    ///
    /// # Errors
    /// Returns what is missing.
    fn check(&self, _model: &str, _tokenizer: &Tokenizer) -> Result<()> {
        Ok(())
    }

    /// The sample of a number, below [`most_samples`](Self::most_samples), in one of its cells. In
    /// a cell with a length it has at most that number of tokens.
    ///
    /// # Errors
    /// Returns an error if the task does not fit into the length, with the length that it needs, or
    /// if the tokenizer fails.
    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample>;
}
