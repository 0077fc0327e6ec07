//! An evaluation that can be run: every request, checked with every method before anything is
//! loaded.

use tributary_engine::{Engine, Question, RunConfig, Synthetic};
use tributary_planner::Planned;

use crate::design::{Arm, Design};
use crate::error::{Error, Result};
use crate::score::Metric;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// Bytes of text that count as a token where there is no tokenizer: English has somewhat more with
/// current vocabularies.
const BYTES_A_TOKEN: usize = 4;

/// A design with all its requests.
pub struct Evaluation {
    /// Design of the evaluation.
    pub design: Design,
    /// The methods, the reference first.
    pub arms: Vec<Arm>,
    /// The suite's cells, each with the number of its requests.
    pub cells: Vec<(Cell, usize)>,
    /// The requests, in the order in which they are asked: the first of every cell, then the
    /// second.
    pub requests: Vec<Request>,
    /// The plans of the longest request of each cell: one a method, in their order.
    pub longest: Vec<Vec<Planned>>,
    /// Whether tokens are estimated, since the model has no tokenizer here: good for a dry run and
    /// nothing else.
    pub is_estimated: bool,
}

/// A request of a task.
pub struct Request {
    /// The task, with its length and depth.
    pub cell: Cell,
    /// Its number there.
    pub number: usize,
    /// Its name in the file that it comes from, if it has one.
    pub id: Option<String>,
    /// Question to the model.
    pub question: Question,
    /// Scoring of the answer.
    pub scoring: Scoring,
    /// The hash of all that the model is shown, as hexadecimal digits.
    pub prompt_hash: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens to generate, at most.
    pub answer_tokens: usize,
}

impl Request {
    /// Settings with which a method answers this request: with the maximum number of tokens of its
    /// answer.
    pub fn run_config(&self, arm: &Arm) -> RunConfig {
        let mut run_config = arm.run_config.clone();
        run_config.settings.max_tokens = self.answer_tokens;
        run_config
    }
}

impl Evaluation {
    /// All requests of a suite. The longest one of each cell is checked with every method.
    ///
    /// # Errors
    /// Returns an error if the tokenizer does not know the suite's words, if a task does not fit
    /// into a length, if a method cannot answer, or if the model is too short, with both numbers.
    pub fn new(design: Design, suite: &dyn Suite, arms: Vec<Arm>, engine: &mut Engine<'_>) -> Result<Self> {
        let limit = engine.folder().config.max_positions;
        if let Some(length) = design.lengths.iter().find(|length| **length > limit) {
            return Err(Error::usage(format!("--lengths {length}: the model has {limit} positions")));
        }
        let most = |cell: &Cell| suite.most_samples(cell).unwrap_or(usize::MAX).min(design.samples);
        let cells: Vec<(Cell, usize)> = suite.cells().into_iter().map(|cell| (cell.clone(), most(&cell))).collect();
        let requests = requests(&design, &cells, suite, engine)?;
        let mut longest = Vec::new();
        for (cell, _) in &cells {
            let own = requests.iter().filter(|request| request.cell == *cell);
            let Some(request) = own.max_by_key(|request| request.prompt_tokens + request.answer_tokens) else {
                continue;
            };
            check_length(request, limit, suite)?;
            let plans = arms.iter().map(|arm| Ok(engine.check(&request.question, &request.run_config(arm))?));
            longest.push(plans.collect::<Result<Vec<_>>>()?);
        }
        let is_estimated = engine.folder().tokenizer.is_none();
        Ok(Self { design, arms, cells, requests, longest, is_estimated })
    }

    /// Number of answers.
    pub fn answers(&self) -> usize {
        self.requests.len() * self.arms.len()
    }
}

/// A request fits into the positions of the model.
fn check_length(request: &Request, limit: usize, suite: &dyn Suite) -> Result<()> {
    let Request { cell, number, prompt_tokens, answer_tokens, .. } = request;
    if prompt_tokens + answer_tokens <= limit {
        return Ok(());
    }
    let instead = if suite.cuts_contexts() { format!("; --lengths {limit} cuts contexts") } else { String::new() };
    Err(Error::usage(format!(
        "{cell}, request {number}: {prompt_tokens} prompt tokens and {answer_tokens} to generate; the model has {limit} positions{instead}"
    )))
}

fn requests(design: &Design, cells: &[(Cell, usize)], suite: &dyn Suite, engine: &Engine<'_>) -> Result<Vec<Request>> {
    let folder = engine.folder();
    if let Some(tokenizer) = &folder.tokenizer {
        suite.check(&folder.path.display().to_string(), tokenizer)?;
    }
    let count = |text: &str| match &folder.tokenizer {
        Some(tokenizer) => Ok(tokenizer.encode(text)?.ids.len()),
        None => Ok(text.len().div_ceil(BYTES_A_TOKEN)),
    };
    let measure = Measure::new(&count);
    let around = if folder.tokenizer.is_some() { around(engine, &measure)? } else { 0 };
    let mut found = Vec::new();
    for number in 0..design.samples {
        for (cell, _) in cells.iter().filter(|(_, samples)| number < *samples) {
            measure.set_around(around);
            found.push(request(cell, number, suite, &measure, engine)?);
        }
    }
    Ok(found)
}

/// Number of tokens around every prompt: the first one, and the chat template's.
fn around(engine: &Engine<'_>, measure: &Measure<'_>) -> Result<usize> {
    let word = || "text".to_owned();
    let sample = Sample {
        lead: word(),
        chunks: vec![word()],
        pages: Vec::new(),
        query: word(),
        begun: word(),
        uses_template: true,
        scoring: Scoring::new(Metric::MatchAll, Vec::new()),
        answer_tokens: 0,
        id: None,
    };
    let tokens = engine.read(&sample.question()?)?.token_count();
    Ok(tokens.saturating_sub(measure.length(&sample)?))
}

/// Random tokens, as many as a sample is measured to have.
fn random(sample: &Sample, measure: &Measure<'_>) -> Result<Question> {
    let sum = |texts: &[String]| texts.iter().map(|text| measure.tokens(text)).sum::<Result<usize>>();
    let chunks = sample.chunks.len().max(1);
    // The text before the context counts as a part of it here.
    let context = sum(&sample.chunks)? + measure.tokens(&sample.lead)?;
    let query_tokens = sum(&[sample.query.clone(), sample.begun.clone()])?.max(1);
    let chunk_tokens = context.div_ceil(chunks).max(1);
    Ok(Question::Random(Synthetic { chunks, chunk_tokens, query_tokens }, 0))
}

/// A request of a cell, with at most the cell's number of tokens. Texts that are encoded together
/// may have other tokens than each alone: a prompt that comes out longer than measured is made
/// anew, shorter by the difference.
fn request(
    cell: &Cell,
    number: usize,
    suite: &dyn Suite,
    measure: &Measure<'_>,
    engine: &Engine<'_>,
) -> Result<Request> {
    loop {
        let sample = suite.sample(cell, number, measure)?;
        let question = match engine.folder().tokenizer {
            Some(_) => sample.question()?,
            None => random(&sample, measure)?,
        };
        let prompt_tokens = engine.read(&question)?.token_count();
        let length = prompt_tokens + sample.answer_tokens;
        if let Some(limit) = cell.length.filter(|limit| length > *limit) {
            measure.set_around(measure.around() + length - limit);
            continue;
        }
        return Ok(Request {
            cell: cell.clone(),
            number,
            id: sample.id.clone(),
            question,
            prompt_hash: sample.hash(),
            prompt_tokens,
            answer_tokens: sample.answer_tokens,
            scoring: sample.scoring,
        });
    }
}
