//! Every answer that was given, a line of JSON each, in the order in which they came.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tributary_engine::Answered;

use crate::decoding::Decoding;
use crate::design::Arm;
use crate::error::{Error, Result};
use crate::evaluation::Request;
use crate::selected::Rows;
use crate::suite::Cell;

/// One answer of a method to a request, or its failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The task, with its length and depth.
    pub cell: Cell,
    /// The request's number there.
    pub sample: usize,
    /// The request's name in the file that it comes from, if it has one.
    pub id: Option<String>,
    /// The method and its options.
    pub method: String,
    /// The share of the context that it recomputes; absent where it has none.
    pub ratio: Option<f64>,
    /// The hash of all that the model is shown.
    pub prompt_hash: String,
    /// References of a right answer.
    pub references: Vec<String>,
    /// From 0 to 1; a failure has 0.
    pub score: f64,
    /// Outcome of the request.
    pub outcome: Outcome,
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// An answer.
    Answered(Box<Reply>),
    /// A failure, in one line.
    Failed {
        /// Description of the failure.
        failure: String,
        /// The exit code of a process that ends because of it.
        exit_code: u8,
    },
}

/// An answer and its cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The generated text.
    pub answer: String,
    /// The first generated token.
    pub first_token: u32,
    /// Context rows that were selected and recomputed.
    pub selected_rows: usize,
    /// Context rows that were computed once before that, to measure their attention or their drift.
    pub measured_rows: usize,
    /// Context rows in all.
    pub context_rows: usize,
    /// From the request's acceptance to the first token.
    pub ttft_ms: f64,
    /// The phases until then, in their order.
    pub phases: Vec<PhaseTime>,
    /// Payload bytes of tensors received until then, all ranks together.
    pub received_bytes: u64,
    /// Whether the order of documents differed from the request's.
    pub moved: bool,
    /// KL(full prefill ‖ this method) of the first token's distribution over the whole vocabulary,
    /// in nats; absent for full prefill itself, and where that gave no answer.
    pub kl_nats: Option<f64>,
    /// The context rows that were selected and recomputed.
    pub selected: Rows,
    /// The documents' chunks in the order of the prompt; empty for the request's own.
    pub order: Vec<u32>,
    /// Decoding after the first token; absent in answers of earlier builds.
    pub decoding: Option<Decoding>,
}

/// A part of the time to first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Which phase.
    pub phase: String,
    /// Milliseconds of the phase.
    pub ms: f64,
}

/// A line of the file. Exactly one is present: an answer with its cost, or a failure.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    cell: Cell,
    sample: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    method: String,
    ratio: Option<f64>,
    prompt_hash: String,
    references: Vec<String>,
    score: f64,
    answer: Option<String>,
    first_token: Option<u32>,
    selected_rows: Option<usize>,
    measured_rows: Option<usize>,
    context_rows: Option<usize>,
    ttft_ms: Option<f64>,
    phases: Option<Vec<PhaseTime>>,
    received_bytes: Option<u64>,
    moved: Option<bool>,
    kl_nats: Option<f64>,
    selected: Option<Rows>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decoding: Option<Decoding>,
    failure: Option<String>,
    exit_code: Option<u8>,
}

impl From<Answer> for Line {
    fn from(answer: Answer) -> Self {
        let Answer { cell, sample, id, method, ratio, prompt_hash, references, score, outcome } = answer;
        let (reply, failed) = match outcome {
            Outcome::Answered(reply) => (Some(reply), None),
            Outcome::Failed { failure, exit_code } => (None, Some((failure, exit_code))),
        };
        let (failure, exit_code) = failed.unzip();
        Self {
            cell,
            sample,
            id,
            method,
            ratio,
            prompt_hash,
            references,
            score,
            first_token: reply.as_ref().map(|reply| reply.first_token),
            selected_rows: reply.as_ref().map(|reply| reply.selected_rows),
            measured_rows: reply.as_ref().map(|reply| reply.measured_rows),
            context_rows: reply.as_ref().map(|reply| reply.context_rows),
            ttft_ms: reply.as_ref().map(|reply| reply.ttft_ms),
            received_bytes: reply.as_ref().map(|reply| reply.received_bytes),
            moved: reply.as_ref().map(|reply| reply.moved),
            kl_nats: reply.as_ref().and_then(|reply| reply.kl_nats),
            phases: reply.as_ref().map(|reply| reply.phases.clone()),
            selected: reply.as_ref().map(|reply| reply.selected.clone()),
            order: reply.as_ref().map(|reply| reply.order.clone()).filter(|order| !order.is_empty()),
            decoding: reply.as_ref().and_then(|reply| reply.decoding.clone()),
            answer: reply.map(|reply| reply.answer),
            failure,
            exit_code,
        }
    }
}

impl Line {
    /// Outcome of the request; none where a part is missing.
    fn outcome(self) -> Option<Outcome> {
        if let Some(failure) = self.failure {
            return Some(Outcome::Failed { failure, exit_code: self.exit_code? });
        }
        Some(Outcome::Answered(Box::new(Reply {
            answer: self.answer?,
            first_token: self.first_token?,
            selected_rows: self.selected_rows?,
            measured_rows: self.measured_rows?,
            context_rows: self.context_rows?,
            ttft_ms: self.ttft_ms?,
            phases: self.phases?,
            received_bytes: self.received_bytes?,
            moved: self.moved?,
            kl_nats: self.kl_nats,
            selected: self.selected?,
            order: self.order.unwrap_or_default(),
            decoding: self.decoding,
        })))
    }

    fn answer(mut self) -> Option<Answer> {
        let (id, references) = (self.id.take(), std::mem::take(&mut self.references));
        let (cell, method, prompt_hash) = (self.cell.clone(), self.method.clone(), self.prompt_hash.clone());
        let (sample, ratio, score) = (self.sample, self.ratio, self.score);
        Some(Answer { cell, sample, id, method, ratio, prompt_hash, references, score, outcome: self.outcome()? })
    }
}

impl Reply {
    /// Kept facts of an answered request.
    pub fn of(answered: &Answered) -> Self {
        let report = &answered.report;
        let phase = |row: &tributary_coordinator::report::PhaseRow| PhaseTime {
            phase: row.phase.to_owned(),
            ms: row.critical_path_ms,
        };
        Self {
            answer: report.answer.clone(),
            first_token: report.token_ids.first().copied().unwrap_or_default(),
            selected_rows: report.tokens.selected,
            measured_rows: answered.answer.outcome.measured.len(),
            context_rows: report.tokens.context,
            ttft_ms: report.ttft_ms,
            phases: report.phases.iter().map(phase).collect(),
            received_bytes: report.ranks.iter().map(|rank| rank.tensor_bytes_received).sum(),
            moved: !report.order.is_sorted(),
            kl_nats: None,
            selected: Rows::of_context(&answered.planned.plan, &answered.answer.outcome.selected),
            order: if report.order.is_sorted() { Vec::new() } else { report.order.clone() },
            decoding: Some(Decoding::of(answered)),
        }
    }
}

impl Answer {
    /// A method's answer to a request.
    pub fn new(request: &Request, arm: &Arm, outcome: Outcome) -> Self {
        let score = match &outcome {
            Outcome::Answered(reply) => request.scoring.score(&reply.answer),
            Outcome::Failed { .. } => 0.0,
        };
        Self {
            cell: request.cell.clone(),
            sample: request.number,
            id: request.id.clone(),
            method: arm.method.clone(),
            ratio: arm.ratio,
            prompt_hash: request.prompt_hash.clone(),
            references: request.scoring.references.clone(),
            score,
            outcome,
        }
    }

    /// The reply, if it is no failure.
    pub fn reply(&self) -> Option<&Reply> {
        match &self.outcome {
            Outcome::Answered(reply) => Some(reply),
            Outcome::Failed { .. } => None,
        }
    }
}

/// An answer's score; 0 where there is none.
pub(crate) fn score(answer: Option<&Answer>) -> f64 {
    answer.map_or(0.0, |answer| answer.score)
}

/// Answers by cell, number, method and ratio. Of several the last counts.
#[derive(Debug, Default)]
pub struct Answers(HashMap<(Cell, usize, String), Answer>);

impl Answers {
    /// Adds an answer.
    pub fn add(&mut self, answer: Answer) {
        let method = named(&answer.method, answer.ratio);
        self.0.insert((answer.cell.clone(), answer.sample, method), answer);
    }

    /// The answers of a method to the requests of some cells, each with the number of its requests.
    pub(crate) fn of_arm(&self, cells: &[(Cell, usize)], arm: &Arm) -> Vec<Option<&Answer>> {
        cells.iter().flat_map(|(cell, count)| (0..*count).map(|number| self.get(cell, number, arm))).collect()
    }

    /// The answer of a method to a request, if there is one.
    pub fn get(&self, cell: &Cell, sample: usize, arm: &Arm) -> Option<&Answer> {
        self.0.get(&(cell.clone(), sample, named(&arm.method, arm.ratio)))
    }
}

fn named(method: &str, ratio: Option<f64>) -> String {
    format!("{method} {ratio:?}")
}

/// The file of answers, which grows by a line at a time.
pub struct AnswerFile {
    file: File,
    path: PathBuf,
}

impl AnswerFile {
    /// Opens the file to add to it; makes it where there is none.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self { file: file.map_err(Error::file("cannot open", path))?, path: path.to_owned() })
    }

    /// Adds an answer, which is in the system's hands when this returns.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn add(&mut self, answer: &Answer) -> Result<()> {
        let mut line = serde_json::to_vec(&Line::from(answer.clone()))?;
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.flush());
        written.map_err(Error::file("cannot write", &self.path))
    }
}

/// The answers of a file, and how many of its bytes are whole lines: a process that was stopped may
/// have left a part of one.
///
/// # Errors
/// Returns the number of the first line that is no answer.
pub fn read(path: &Path) -> Result<(Vec<Answer>, u64)> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| Error::usage(format!("{shown}: {error}")))?;
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    let lines = bytes[..whole].split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let read = |(index, line): (usize, &[u8])| {
        let bad = |cause: &str| Error::usage(format!("{shown}, line {}: {cause}", index + 1));
        let line: Line = serde_json::from_slice(line).map_err(|error| bad(&error.to_string()))?;
        line.answer().ok_or_else(|| bad("a part of the answer lacks"))
    };
    Ok((lines.map(read).collect::<Result<_>>()?, whole as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit;

    fn reply() -> Reply {
        let selected = Rows::of([3, 4, 9].into_iter());
        let decoding = Some(kit::decoding(16.0, Some(32.0)));
        Reply { answer: "red .".to_owned(), kl_nats: Some(0.25), selected, order: vec![1, 0], decoding, ..kit::reply() }
    }

    fn answer(sample: usize, outcome: Outcome) -> Answer {
        Answer {
            cell: Cell { depth: Some(50), ..Cell::at("vt3", 4096) },
            sample,
            id: (sample == 1).then(|| "row-1".to_owned()),
            method: "infoflow".to_owned(),
            ratio: Some(0.15),
            prompt_hash: "0".repeat(32),
            references: vec!["red".to_owned()],
            score: 1.0,
            outcome,
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written_but_for_a_cut_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers.jsonl");
        let all = [
            answer(0, Outcome::Answered(Box::new(reply()))),
            answer(1, Outcome::Failed { failure: "rank 1 is gone".to_owned(), exit_code: 69 }),
            Answer { ratio: None, ..answer(2, Outcome::Answered(Box::new(reply()))) },
        ];
        let mut file = AnswerFile::open(&path).unwrap();
        all.iter().for_each(|answer| file.add(answer).unwrap());
        let (found, whole) = read(&path).unwrap();
        assert_eq!((found.as_slice(), whole), (all.as_slice(), std::fs::metadata(&path).unwrap().len()));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let (found, whole) = read(&path).unwrap();
        assert_eq!(found, all[..2], "a part of a line is none");
        assert_eq!(&text[..whole as usize], text.lines().take(2).map(|line| format!("{line}\n")).collect::<String>());
        std::fs::write(&path, format!("{text}nothing\n")).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 4: "));
    }

    #[test]
    fn the_last_answer_of_several_counts() {
        let settings = tributary_planner::RequestSettings { ratio: Some(0.15), ..Default::default() };
        let run_config = tributary_engine::RunConfig { settings, threads: 1 };
        let arm = Arm::new("infoflow".to_owned(), run_config);
        let mut answers = Answers::default();
        answers.add(answer(1, Outcome::Failed { failure: "no".to_owned(), exit_code: 69 }));
        answers.add(answer(1, Outcome::Answered(Box::new(reply()))));
        let cell = answer(1, Outcome::Answered(Box::new(reply()))).cell;
        assert!(answers.get(&cell, 1, &arm).is_some_and(|answer| answer.reply().is_some()));
        assert!(answers.get(&Cell::of("vt3"), 1, &arm).is_none(), "another length is another request");
        assert!(answers.get(&cell, 1, &Arm { ratio: Some(0.05), ..arm }).is_none());
    }
}
