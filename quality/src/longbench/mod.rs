//! The suite `longbench`: rows in the format of LongBench (Bai et al. 2023, arXiv:2308.14508), with
//! the prompts, answer lengths and metrics that its authors publish. A task is a file of the data
//! folder. Passages are documents where a row has them; other contexts are texts.

mod prompts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use self::prompts::{CHOICES, DATASETS, Dataset};
use crate::cut::{Run, TEXT_CHUNK_TOKENS, chunks, document, sentences};
use crate::design::{Asked, chosen, numbers};
use crate::error::{Error, Result};
use crate::fit::{Fit, largest};
use crate::fitted::too_short;
use crate::material::has_row;
use crate::passages::marked_passages;
use crate::random::Random;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// Folders of the data folder that may have files of rows.
const FOLDERS: [&str; 3] = ["longbench", "data", "."];

/// Files of this beginning were made of other data sets, in the format alone.
const DERIVED: &str = "derived_";

/// How contexts are cut, for the reader of a report.
const CUT: &str = "a context that is too long for its length is cut in its middle; where its row names the passages \
     that answer it, the others are left out";

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
    /// Its type, in files that have rows of several: each type is a task.
    #[serde(default, rename = "type")]
    kind: Option<String>,
    /// Numbers of the passages that answer it, from 1, in files that name them.
    #[serde(default)]
    needed: Vec<usize>,
    /// Sources of those passages.
    #[serde(default)]
    sources: Vec<String>,
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
        let (kind, needed, sources) = Default::default();
        Self { input, context, answers, dataset: CHOICES.name.to_owned(), all_classes: None, id, kind, needed, sources }
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
    let of_files: Vec<String> = asked.tasks.iter().map(|task| file_of(task).to_owned()).collect();
    let names = chosen("longbench", &of_files, &known)?;
    let tasks_of = |name: &String| -> Result<Vec<Task>> {
        let file = files.iter().find(|file| stem(file) == *name).expect("names are those of files");
        let tasks = tasks_of(name, rows(file, asked)?);
        if asked.tasks.is_empty() || asked.tasks.contains(name) {
            return Ok(tasks);
        }
        let known: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
        let own: Vec<String> = asked.tasks.iter().filter(|task| file_of(task) == name).cloned().collect();
        let wanted = chosen(name, &own, &known)?;
        Ok(tasks.into_iter().filter(|task| wanted.contains(&task.name)).collect())
    };
    let lengths = numbers(&asked.lengths, &[]);
    let tasks = names.iter().map(tasks_of).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    Ok(Box::new(LongBench { tasks, lengths, chunk_tokens: asked.chunk_tokens.first().copied() }))
}

/// The file of a task: `FILE`, or `FILE:TYPE`.
fn file_of(task: &str) -> &str {
    task.split_once(':').map_or(task, |(file, _)| file)
}

/// The tasks of a file: one for each type of its rows, by the alphabet.
fn tasks_of(name: &str, rows: Vec<(Row, &'static Dataset)>) -> Vec<Task> {
    let mut tasks: BTreeMap<String, Vec<(Row, &'static Dataset)>> = BTreeMap::new();
    for (row, dataset) in rows {
        let task = row.kind.as_ref().map_or_else(|| name.to_owned(), |kind| format!("{name}:{kind}"));
        tasks.entry(task).or_default().push((row, dataset));
    }
    tasks.into_iter().map(|(name, rows)| Task { name, rows }).collect()
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

/// The rows of a file that belong to the part, as many of each type as there are samples: by seed 0
/// the first ones, by another one those that it draws.
fn rows(file: &Path, asked: &Asked) -> Result<Vec<(Row, &'static Dataset)>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| Error::usage(format!("{shown}: {error}")))?;
    let text = text.trim_start_matches('\u{feff}');
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |cause: String| Error::usage(format!("{shown}, line {}: {cause}", index + 1));
        let row = row(line).map_err(|error| bad(error.to_string()))?;
        let Some(dataset) = dataset(&row.dataset) else {
            let known = DATASETS.map(|dataset| dataset.name).join(", ");
            return Err(bad(format!("`dataset`: {} cannot be scored; known are {known}", row.dataset)));
        };
        if row.context.trim().is_empty() || row.answers.is_empty() {
            return Err(bad("`context` and `answers` must not be empty".to_owned()));
        }
        if has_row(&asked.split, &row.sources, &row.context) {
            rows.push((row, dataset));
        }
    }
    if rows.is_empty() {
        return Err(Error::usage(format!("{shown}: it has no rows")));
    }
    if asked.seed != 0 {
        Random::of(&format!("longbench {} {}", asked.seed, stem(file))).shuffle(&mut rows);
    }
    let mut counts = HashMap::<Option<String>, usize>::new();
    rows.retain(|(row, _)| {
        let count = counts.entry(row.kind.clone()).or_default();
        *count += 1;
        *count <= asked.samples
    });
    Ok(rows)
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

/// A context of marked passages without some that its answer does not need, the last of them first.
/// Those that stay are numbered anew.
fn with_passages(passages: &[&str], needed: &[usize], kept: usize) -> String {
    let mut spare = kept.saturating_sub(needed.len());
    let mut text = String::new();
    let mut number = 0;
    for (index, passage) in passages.iter().enumerate() {
        let is_needed = needed.contains(&(index + 1));
        if !is_needed && spare == 0 {
            continue;
        }
        spare -= usize::from(!is_needed);
        number += 1;
        let (mark, rest) = passage.split_once(':').expect("a passage begins with its mark");
        let word = mark.split(' ').next().unwrap_or_default();
        text += &format!("{word} {number}:{rest}");
    }
    text
}

impl LongBench {
    /// The line breaks between a context of documents and the text after it belong to the last
    /// document, so that it may stand before any other.
    fn made(&self, row: &Row, dataset: &Dataset, runs: (&[Run], bool), measure: &Measure<'_>) -> Result<Sample> {
        let (lead, after) = dataset.prompt.split_once("{context}").expect("a prompt has a context");
        let (runs, are_documents) = runs;
        let own = if are_documents { None } else { Some(TEXT_CHUNK_TOKENS) };
        let mut chunks = chunks(runs, self.chunk_tokens.or(own), measure)?;
        let query = match chunks.last_mut().filter(|_| are_documents) {
            Some(last) => {
                let query = after.trim_start_matches('\n');
                if !last.ends_with("\n\n") {
                    last.push_str(&after[..after.len() - query.len()]);
                }
                query
            }
            None => after,
        };
        Ok(Sample {
            lead: lead.to_owned(),
            chunks,
            pages: Vec::new(),
            query: query.replace("{input}", &row.input),
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

    /// The row with as many passages as fit into a length, all that its answer needs among them;
    /// nothing where it does not name those, or they do not fit.
    fn with_needed(
        &self,
        row: &Row,
        dataset: &Dataset,
        length: usize,
        measure: &Measure<'_>,
    ) -> Result<Option<Sample>> {
        let Some(passages) = marked_passages(&row.context).filter(|_| !row.needed.is_empty()) else { return Ok(None) };
        let of = |kept| {
            let context = with_passages(&passages, &row.needed, kept);
            let (runs, are_documents) = runs(&context);
            self.made(row, dataset, (&runs, are_documents), measure)
        };
        // Two at least: one alone is no list of passages.
        let least = row.needed.len().max(2);
        match largest((least, passages.len()), length, |kept| measure.length(&of(kept)?))? {
            Fit::Largest(kept) => Ok(Some(of(kept)?)),
            Fit::TooShort(_) => Ok(None),
        }
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
            lines.push(CUT.to_owned());
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
        if let Some(sample) = self.with_needed(row, dataset, length, measure)? {
            return Ok(sample);
        }
        let cut = |kept| self.made(row, dataset, (&without_middle(&runs, kept), are_documents), measure);
        match largest((1, runs.len()), length, |kept| measure.length(&cut(kept)?))? {
            Fit::Largest(kept) => cut(kept),
            Fit::TooShort(tokens) => Err(too_short(cell, tokens, dataset.answer_tokens)),
        }
    }
}
