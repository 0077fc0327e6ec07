//! Requests of a suite as token ids, as input of a training, which works without text.

use tributary_coordinator::{Prefix, Prepared};
use tributary_engine::{IntakeConfig, ModelFolder};

use crate::design::Asked;
use crate::error::{Error, Result};
use crate::suite::Measure;
use crate::suites;

/// A request to learn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Lesson {
    /// Its task.
    pub task: String,
    /// Its token ids.
    pub prepared: Prepared,
    /// Tokens of an answer, at most.
    pub answer_tokens: usize,
}

/// `asked.samples` requests of a suite in all, the tasks in turn: the first of every task, then the
/// second; each round of the tasks has the next of `prefixes`. Fewer where a file has fewer.
///
/// # Errors
/// Returns an error if the suite refuses, if there is no prefix, if the model has no tokenizer or
/// one that does not know the suite's words, or if a request is longer than the model's context.
pub fn lessons(asked: &Asked, prefixes: &[Prefix], folder: &ModelFolder, intake: &IntakeConfig) -> Result<Vec<Lesson>> {
    let (_, suite) = suites::open(asked)?;
    let tokenizer = folder.tokenizer.as_ref().ok_or_else(|| Error::usage("training samples need a tokenizer"))?;
    suite.check(&folder.path.display().to_string(), tokenizer)?;
    let count = |text: &str| Ok(tokenizer.encode(text)?.ids.len());
    let measure = Measure::new(&count);
    let mut cells: Vec<_> = suite.cells().into_iter().map(|cell| (suite.most_samples(&cell), cell)).collect();
    let (mut found, mut round) = (Vec::new(), 0);
    while found.len() < asked.samples {
        cells.retain(|(most, _)| most.is_none_or(|most| round < most));
        if cells.is_empty() || prefixes.is_empty() {
            break;
        }
        for (_, cell) in cells.iter().take(asked.samples - found.len()) {
            let sample = suite.sample(cell, round, &measure)?;
            let prefix = prefixes[round % prefixes.len()].clone();
            let prepared = sample.question()?.prepare(folder, &IntakeConfig { prefix, ..intake.clone() })?;
            let (tokens, limit) = (prepared.token_count() + sample.answer_tokens, folder.config.max_positions);
            if tokens > limit {
                return Err(Error::usage(format!("{cell}, request {round}: {tokens} tokens; the model has {limit}")));
            }
            found.push(Lesson { task: cell.task.clone(), prepared, answer_tokens: sample.answer_tokens });
        }
        round += 1;
    }
    Ok(found)
}
