//! The suite `longbench`: rows in the format of LongBench (Bai et al. 2023, arXiv:2308.14508), with
//! the prompts, answer lengths and metrics that its authors publish. A task is a file of the data
//! folder. Passages are documents where a row has them; other contexts are texts.

mod prompts;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use self::prompts::{CHOICES, DATASETS, Dataset};
use crate::cut::{Run, TEXT_CHUNK_TOKENS, chunks, document, sentences};
use crate::design::{Asked, chosen, numbers};
use crate::error::{Error, Result};
use crate::fit::{Fit, largest};
use crate::fitted::too_short;
use crate::passages::marked_passages;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// Folders of the data folder that may have files of rows.
const FOLDERS: [&str; 3] = ["longbench", "data", "."];

/// Files of this beginning were made of other data sets, in the format alone.
const DERIVED: &str = "derived_";

/// A row, but for the fields that nothing here needs.
#[derive(Debug, Clone, Deserialize)]
struct Row {
    input: String,
    context: String,
    #[serde(deserialize_with = "texts")]
    answers: Vec<String>,
    dataset: String,
    #[serde(default)]
    all_classes: Option<Vec<String>>,
    #[serde(default, rename = "_id")]
    id: Option<String>,
}

/// A row of LongBench v2 (Bai et al. 2024, arXiv:2412.15204): a question with four choices.
#[derive(Debug, Clone, Deserialize)]
struct ChoiceRow {
    #[serde(rename = "_id", default)]
    id: Option<String>,
    question: String,
    #[serde(rename = "choice_A")]
    a: String,
    #[serde(rename = "choice_B")]
    b: String,
    #[serde(rename = "choice_C")]
    c: String,
    #[serde(rename = "choice_D")]
    d: String,
    answer: String,
    context: String,
}

impl From<ChoiceRow> for Row {
    fn from(row: ChoiceRow) -> Self {
        let ChoiceRow { id, question, a, b, c, d, answer, context } = row;
        let input = format!(
            "{}\nChoices:\n(A) {}\n(B) {}\n(C) {}\n(D) {}",
            question.trim(),
            a.trim(),
            b.trim(),
            c.trim(),
            d.trim()
        );
        let answers = vec![format!("correct answer is ({answer})"), format!("correct answer is {answer}")];
        Self { input, context, answers, dataset: CHOICES.name.to_owned(), all_classes: None, id }
    }
}

/// Answers, as a list, or one alone; numbers too.
fn texts<'de, D: Deserializer<'de>>(field: D) -> std::result::Result<Vec<String>, D::Error> {
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(serde::de::Error::custom("`answers` are texts or numbers")),
    };
    match Value::deserialize(field)? {
        Value::Array(values) => values.iter().map(text).collect(),
        one => Ok(vec![text(&one)?]),
    }
}

/// A row of either version.
fn row(line: &str) -> serde_json::Result<Row> {
    let value: Value = serde_json::from_str(line)?;
    match value.get("choice_A").is_some() {
        true => serde_json::from_value::<ChoiceRow>(value).map(Row::from),
        false => serde_json::from_value(value),
    }
}

/// The dataset of that name; rows of LongBench-E may have `_e` after it.
fn dataset(name: &str) -> Option<&'static Dataset> {
    let plain = name.strip_suffix("_e").unwrap_or(name);
    DATASETS.iter().chain([&CHOICES]).find(|dataset| dataset.name == name || dataset.name == plain)
}

/// A file of rows.
struct Task {
    name: String,
    rows: Vec<(Row, &'static Dataset)>,
}

/// Files of rows, at given lengths or whole.
struct LongBench {
    tasks: Vec<Task>,
    lengths: Vec<usize>,
    chunk_tokens: Option<usize>,
}

/// The suite as it was asked for.
///
/// # Errors
/// Returns an error if there is no data folder or none with files of rows, if a task is unknown,
/// with the known tasks, or if a row lacks a field or is of a dataset that cannot be scored, with
/// its line.
pub fn open(asked: &Asked) -> Result<Box<dyn Suite>> {
    let Some(data) = &asked.data else {
        return Err(Error::usage("--suite longbench: name the folder of its files with --data DIR or TRIBUTARY_DATA"));
    };
    let files = files(data)?;
    let known: Vec<String> = files.iter().map(|file| stem(file)).collect();
    let names = chosen("longbench", &asked.tasks, &known)?;
    let task = |name: String| -> Result<Task> {
        let file = files.iter().find(|file| stem(file) == name).expect("names are those of files");
        Ok(Task { rows: rows(file, asked.samples)?, name })
    };
    let lengths = numbers(&asked.lengths, &[]);
    let tasks = names.into_iter().map(task).collect::<Result<Vec<_>>>()?;
    Ok(Box::new(LongBench { tasks, lengths, chunk_tokens: asked.chunk_tokens.first().copied() }))
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The files of the first folder that has any, by their names.
fn files(data: &Path) -> Result<Vec<PathBuf>> {
    for folder in FOLDERS.map(|name| data.join(name)) {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut found: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")).collect();
        found.sort();
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let shown = data.display();
    Err(Error::usage(format!("--suite longbench: {shown} has no longbench/*.jsonl: rows in LongBench's format")))
}

/// The first rows of a file.
fn rows(file: &Path, most: usize) -> Result<Vec<(Row, &'static Dataset)>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| Error::usage(format!("{shown}: {error}")))?;
    let text = text.trim_start_matches('\u{feff}');
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(most);
    let read = |(index, line): (usize, &str)| {
        let bad = |cause: String| Error::usage(format!("{shown}, line {}: {cause}", index + 1));
        let row = row(line).map_err(|error| bad(error.to_string()))?;
        let Some(dataset) = dataset(&row.dataset) else {
            let known = DATASETS.map(|dataset| dataset.name).join(", ");
            return Err(bad(format!("`dataset`: {} cannot be scored; known are {known}", row.dataset)));
        };
        if row.context.trim().is_empty() || row.answers.is_empty() {
            return Err(bad("`context` and `answers` must not be empty".to_owned()));
        }
        Ok((row, dataset))
    };
    let rows: Vec<_> = lines.map(read).collect::<Result<_>>()?;
    if rows.is_empty() { Err(Error::usage(format!("{shown}: it has no rows"))) } else { Ok(rows) }
}

/// The runs of a context, and whether it is documents.
fn runs(context: &str) -> (Vec<Run>, bool) {
    match marked_passages(context) {
        Some(passages) => (passages.into_iter().flat_map(document).collect(), true),
        None => (sentences(context).into_iter().map(Run::new).collect(), false),
    }
}

/// `kept` of a context's runs: as many of its beginning as of its end.
fn without_middle(runs: &[Run], kept: usize) -> Vec<Run> {
    let (first, last) = (kept.div_ceil(2), kept / 2);
    [&runs[..first], &runs[runs.len() - last..]].concat()
}

impl LongBench {
    fn made(&self, row: &Row, dataset: &Dataset, runs: (&[Run], bool), measure: &Measure<'_>) -> Result<Sample> {
        let (lead, after) = dataset.prompt.split_once("{context}").expect("a prompt has a context");
        let (runs, are_documents) = runs;
        let own = if are_documents { None } else { Some(TEXT_CHUNK_TOKENS) };
        Ok(Sample {
            lead: lead.to_owned(),
            chunks: chunks(runs, self.chunk_tokens.or(own), measure)?,
            query: after.replace("{input}", &row.input),
            begun: String::new(),
            uses_template: dataset.uses_template,
            scoring: Scoring {
                classes: row.all_classes.clone().unwrap_or_default(),
                first_line: dataset.first_line,
                ..Scoring::new(dataset.metric, row.answers.clone())
            },
            answer_tokens: dataset.answer_tokens,
            id: row.id.clone(),
        })
    }
}

impl Suite for LongBench {
    fn made_of(&self) -> Vec<String> {
        let of = |task: &Task| match task.name.starts_with(DERIVED) {
            true => format!("{}: derived, not LongBench itself", task.name),
            false => format!("{}: rows in LongBench's format", task.name),
        };
        let mut lines: Vec<String> = self.tasks.iter().map(of).collect();
        if !self.lengths.is_empty() {
            lines.push("a context that is too long for its length is cut in its middle".to_owned());
        }
        lines
    }

    fn cells(&self) -> Vec<Cell> {
        if self.lengths.is_empty() {
            return self.tasks.iter().map(|task| Cell::of(&task.name)).collect();
        }
        let at = |&length: &usize| self.tasks.iter().map(move |task| Cell::at(&task.name, length));
        self.lengths.iter().flat_map(at).collect()
    }

    fn cuts_contexts(&self) -> bool {
        true
    }

    fn most_samples(&self, cell: &Cell) -> Option<usize> {
        self.tasks.iter().find(|task| task.name == cell.task).map(|task| task.rows.len())
    }

    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let task = self.tasks.iter().find(|task| task.name == cell.task).expect("cells are made of tasks");
        let (row, dataset) = &task.rows[number];
        let (runs, are_documents) = runs(&row.context);
        let whole = self.made(row, dataset, (&runs, are_documents), measure)?;
        let Some(length) = cell.length else { return Ok(whole) };
        if measure.length(&whole)? <= length {
            return Ok(whole);
        }
        let cut = |kept| self.made(row, dataset, (&without_middle(&runs, kept), are_documents), measure);
        match largest((1, runs.len()), length, |kept| measure.length(&cut(kept)?))? {
            Fit::Largest(kept) => cut(kept),
            Fit::TooShort(tokens) => Err(too_short(cell, tokens, dataset.answer_tokens)),
        }
    }
}
