//! An evaluation that can be run: every request, checked with every method before anything is loaded.

use tributary_coordinator::{Document, Tokenizer};
use tributary_engine::{Engine, Question, RunConfig};

use crate::design::{Arm, Design};
use crate::error::{Error, Result};
use crate::hops::{self, Sample, words};

/// A letter that no vocabulary of words has.
const UNKNOWN: &str = "\u{10000}";

/// A design with all that it comes to.
pub struct Evaluation {
    /// What was asked for.
    pub design: Design,
    /// The methods, the reference first.
    pub arms: Vec<Arm>,
    /// The requests, in the order in which they are asked: the first of every task, then the second.
    pub requests: Vec<Request>,
}

/// A request of a task.
pub struct Request {
    /// The task.
    pub task: &'static str,
    /// Its number in the task.
    pub number: usize,
    /// What is asked.
    pub question: Question,
    /// The words with which a right answer begins.
    pub expected: String,
    /// The hash of documents and query, as hexadecimal digits.
    pub prompt_hash: String,
    /// Tokens of documents and query.
    pub prompt_tokens: usize,
    /// Tokens to generate: those of the expected answer, and one that ends it.
    pub answer_tokens: usize,
}

impl Request {
    /// A sample as a request to a model with this tokenizer.
    fn new(task: &'static str, number: usize, sample: Sample, tokenizer: &Tokenizer) -> Result<Self> {
        let Sample { documents, query, answer } = sample;
        let mut hash = blake3::Hasher::new();
        for text in documents.iter().chain([&query]) {
            hash.update(text.as_bytes()).update(&[0]);
        }
        let count = |text: &String| Ok::<_, Error>(tokenizer.encode(text)?.ids.len());
        let mut prompt_tokens = count(&query)?;
        for document in &documents {
            prompt_tokens += count(document)?;
        }
        let answer_tokens = count(&answer)? + 1;
        let documents = documents.into_iter().map(|text| Document { title: None, text }).collect();
        let request = tributary_coordinator::Request::new(documents, query)?;
        Ok(Self {
            task,
            number,
            question: Question::Text(request),
            expected: answer,
            prompt_hash: hash.finalize().to_hex()[..32].to_owned(),
            prompt_tokens,
            answer_tokens,
        })
    }

    /// How a method answers this request: with as many tokens as its answer has.
    pub fn run_config(&self, arm: &Arm) -> RunConfig {
        let mut run_config = arm.run_config.clone();
        run_config.settings.max_tokens = self.answer_tokens;
        run_config
    }
}

impl Evaluation {
    /// All requests of a design, of which the longest of each task is checked with every method.
    ///
    /// # Errors
    /// A tokenizer that does not know the suite's words; a method that cannot answer; a model that is too short, with both
    /// numbers.
    pub fn new(design: Design, arms: Vec<Arm>, engine: &mut Engine<'_>) -> Result<Self> {
        let requests = requests(&design, engine)?;
        for task in &design.tasks {
            let own = requests.iter().filter(|request| request.task == task);
            let Some(longest) = own.max_by_key(|request| request.prompt_tokens) else { continue };
            for arm in &arms {
                engine.check(&longest.question, &longest.run_config(arm))?;
            }
        }
        Ok(Self { design, arms, requests })
    }

    /// Number of answers.
    pub fn answers(&self) -> usize {
        self.requests.len() * self.arms.len()
    }
}

fn requests(design: &Design, engine: &Engine<'_>) -> Result<Vec<Request>> {
    let folder = engine.folder();
    let tokenizer = folder.tokenizer.as_ref().ok_or_else(|| Error::usage("text needs a tokenizer"))?;
    check_words(design, &folder.path.display().to_string(), tokenizer)?;
    let mut found = Vec::new();
    for number in 0..design.samples {
        for task in design.tasks() {
            let sample = hops::sample(task, design.shape(), design.seed, number);
            found.push(Request::new(task.name, number, sample, tokenizer)?);
        }
    }
    Ok(found)
}

/// Every word of the suite must be known to the model.
fn check_words(design: &Design, model: &str, tokenizer: &Tokenizer) -> Result<()> {
    let unknown = tokenizer.encode(UNKNOWN)?.ids;
    let mut missing = Vec::new();
    for word in words::all() {
        let ids = tokenizer.encode(&word)?.ids;
        if ids.is_empty() || ids == unknown {
            missing.push(word);
        }
    }
    let Some(first) = missing.first() else { return Ok(()) };
    let count = missing.len();
    Err(Error::usage(format!(
        "--suite {}: the tokenizer of {model} does not know {count} of its words, such as `{first}`; models/demo has one that does",
        design.suite
    )))
}
