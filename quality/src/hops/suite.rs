//! The suite as an evaluation takes it.

use tributary_coordinator::Tokenizer;

use super::{LEAST_DOCUMENT_TOKENS, SHAPE, Shape, TASKS, Task, sample, words};
use crate::design::{Asked, at_least, chosen};
use crate::error::{Error, Result};
use crate::score::Metric;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// A letter that no vocabulary of words has.
const UNKNOWN: &str = "\u{10000}";

/// Tasks of a shape, from a seed.
struct Hops {
    tasks: Vec<&'static Task>,
    shape: Shape,
    seed: u64,
}

/// The suite as it was asked for.
///
/// # Errors
/// Returns an error if a task is unknown, with the known tasks, or if there are too few documents
/// or tokens.
pub fn open(asked: &Asked) -> Result<Box<dyn Suite>> {
    let names = chosen("hops", &asked.tasks, &TASKS.map(|task| task.name))?;
    let tasks: Vec<&Task> = names.iter().filter_map(|name| Task::find(name)).collect();
    let least = tasks.iter().map(|task| task.least_documents()).max().unwrap_or(1);
    let documents = asked.documents.unwrap_or(SHAPE.documents);
    let document_tokens = asked.document_tokens.first().copied().unwrap_or(SHAPE.document_tokens);
    at_least("--documents", documents, least)?;
    at_least("--document-tokens", document_tokens, LEAST_DOCUMENT_TOKENS)?;
    Ok(Box::new(Hops { tasks, shape: Shape { documents, document_tokens }, seed: asked.seed }))
}

/// The first word of the language that a tokenizer does not know, and the number of such words.
///
/// # Errors
/// Returns an error if the tokenizer fails.
pub fn unknown_word(tokenizer: &Tokenizer) -> Result<Option<(String, usize)>> {
    let unknown = tokenizer.encode(UNKNOWN)?.ids;
    let mut missing = Vec::new();
    for word in words::all() {
        let ids = tokenizer.encode(&word)?.ids;
        if ids.is_empty() || ids == unknown {
            missing.push(word);
        }
    }
    let count = missing.len();
    Ok(missing.into_iter().next().map(|first| (first, count)))
}

impl Suite for Hops {
    fn made_of(&self) -> Vec<String> {
        let Shape { documents, document_tokens } = self.shape;
        vec![format!("the demo language; {documents} documents of {document_tokens} tokens a request")]
    }

    fn cells(&self) -> Vec<Cell> {
        self.tasks.iter().map(|task| Cell::of(task.name)).collect()
    }

    fn refers(&self, task: &str) -> Option<bool> {
        Task::find(task)?.refers()
    }

    /// Every word of the suite must be known to the model.
    fn check(&self, model: &str, tokenizer: &Tokenizer) -> Result<()> {
        let Some((first, count)) = unknown_word(tokenizer)? else { return Ok(()) };
        Err(Error::usage(format!(
            "--suite hops: the tokenizer of {model} does not know {count} of its words, such as `{first}`; examples/models/demo has one that does"
        )))
    }

    /// As many tokens are generated as the expected answer has, and one that ends it.
    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let task = Task::find(&cell.task).expect("cells are made of tasks");
        let made = sample(task, self.shape, self.seed, number);
        Ok(Sample {
            lead: String::new(),
            chunks: made.documents,
            pages: Vec::new(),
            query: made.query,
            begun: String::new(),
            uses_template: false,
            answer_tokens: measure.tokens(&made.answer)? + 1,
            id: None,
            scoring: Scoring::new(Metric::BeginsWith, vec![made.answer]),
        })
    }
}
