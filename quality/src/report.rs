//! Everything that an evaluation came to, as one object.

use std::io::ErrorKind;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_coordinator::{Environment, LayerCalibration, TraceCalibration};
use tributary_engine::{Engine, program_hash};
use tributary_system::{host, processor, program};

use crate::answers::{Answers, Outcome};
use crate::design::Design;
use crate::error::{Error, Result};
use crate::evaluation::Evaluation;
use crate::overlap::{Overlap, overlaps};
use crate::points::{Point, points};
use crate::pooled::{Pooled, pooled};
use crate::report_runs::ReportRuns;
use crate::suite::Cell;

/// Name and version of the report (`docs/schemas/quality.v1.json`). A field that goes, or means
/// something else, makes another version.
pub const SCHEMA: &str = "tributary.quality/1";

/// Everything that an evaluation came to.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Program, machine and model.
    pub origin: Origin,
    /// Environment of the process.
    pub environment: Environment,
    /// Design of the evaluation.
    pub design: Design,
    /// The study of a run on the report part, and the runs before it; absent for other parts.
    pub report_runs: Option<ReportRuns>,
    /// Number of requests.
    pub requests: usize,
    /// Number of answers, failures among them.
    pub answers: usize,
    /// Number of those that an earlier run left and this one resumed.
    pub answers_before: usize,
    /// Requests that got no answer.
    pub failures: Vec<FailureRow>,
    /// Results: for each method its tasks, at each length and depth where there are such, then all
    /// of them.
    pub points: Vec<Point>,
    /// Methods beside each other on all requests; absent of one method, or of more than twelve.
    pub pooled: Option<Pooled>,
    /// Overlap of the selections of methods at one ratio: one entry for each ratio at which two or
    /// more select rows.
    pub overlaps: Vec<Overlap>,
}

/// Origin of the numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Origin {
    /// The command line.
    pub command: Vec<String>,
    /// Version of the program.
    pub version: String,
    /// The commit that it was built from, where that is known.
    pub revision: Option<String>,
    /// Hash of the program.
    pub build: String,
    /// Hash of the model.
    pub model_hash: String,
    /// Hash of the model's calibrations (trace.json, layers.json), if it has any.
    pub calibrations: Option<String>,
    /// The machine's name.
    pub host: String,
    /// Its processor.
    pub cpu: String,
    /// Its cores.
    pub cores: usize,
}

/// A request that got no answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FailureRow {
    /// The task.
    pub task: String,
    /// Maximum tokens of prompt and answer; absent where no length is set.
    pub length: Option<usize>,
    /// Place of the needed fact, in per cent of the context; absent where no depth is set.
    pub depth: Option<usize>,
    /// Maximum tokens of a chunk; absent where there is one size only.
    pub chunk_tokens: Option<usize>,
    /// The request's number in the task.
    pub sample: usize,
    /// The method and its options.
    pub method: String,
    /// The share of the context that it recomputes; absent where it has none.
    pub ratio: Option<f64>,
    /// Failure, in one line.
    pub failure: String,
    /// The exit code of a process that ends because of it.
    pub exit_code: u8,
}

/// Facts about this process and the model of an engine.
///
/// # Errors
/// Returns an error if the program or the model cannot be read.
pub fn origin(engine: &Engine<'_>) -> Result<Origin> {
    let model = engine.folder().hash().get()?;
    Ok(Origin {
        command: std::env::args().collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        revision: program::revision().map(str::to_owned),
        build: program_hash().map_err(tributary_engine::Error::from)?,
        model_hash: model.iter().map(|byte| format!("{byte:02x}")).collect(),
        calibrations: calibrations(&engine.folder().path)?,
        host: host::name(),
        cpu: processor::model_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
    })
}

/// The hash of a model's calibrations; `None` if it has none.
fn calibrations(folder: &Path) -> Result<Option<String>> {
    let mut parts = Vec::new();
    for path in [TraceCalibration::path(folder), LayerCalibration::path(folder)] {
        match std::fs::read(&path) {
            Ok(bytes) => parts.push(Some(bytes)),
            Err(cause) if cause.kind() == ErrorKind::NotFound => parts.push(None),
            Err(cause) => return Err(Error::file("cannot read", &path)(cause)),
        }
    }
    let mut hasher = blake3::Hasher::new();
    for part in &parts {
        hasher.update(&part.as_ref().map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        hasher.update(part.as_deref().unwrap_or_default());
    }
    Ok(parts.iter().any(Option::is_some).then(|| hasher.finalize().to_hex().to_string()))
}

/// The report of a complete evaluation.
pub fn report(
    evaluation: &Evaluation,
    (origin, environment): (Origin, Environment),
    answers: &Answers,
    answers_before: usize,
    report_runs: Option<ReportRuns>,
) -> Report {
    let Evaluation { design, arms, cells, requests, .. } = evaluation;
    let mut failures = Vec::new();
    for request in requests {
        for arm in arms {
            let answer = answers.get(&request.cell, request.number, arm);
            if let Some(Outcome::Failed { failure, exit_code }) = answer.map(|answer| &answer.outcome) {
                failures.push(FailureRow {
                    task: request.cell.task.clone(),
                    length: request.cell.length,
                    depth: request.cell.depth,
                    chunk_tokens: request.cell.chunk_tokens,
                    sample: request.number,
                    method: arm.method.clone(),
                    ratio: arm.ratio,
                    failure: failure.clone(),
                    exit_code: *exit_code,
                });
            }
        }
    }
    Report {
        schema: SCHEMA,
        origin,
        environment,
        design: design.clone(),
        report_runs,
        requests: requests.len(),
        answers: evaluation.answers(),
        answers_before,
        failures,
        points: points(cells, design.seed, arms, answers),
        pooled: pooled(cells, design.seed, arms, answers),
        overlaps: overlaps(evaluation, answers),
    }
}

impl FailureRow {
    /// Cell of the failure.
    pub fn cell(&self) -> Cell {
        let Self { task, length, depth, chunk_tokens, .. } = self;
        Cell { task: task.clone(), length: *length, depth: *depth, chunk_tokens: *chunk_tokens }
    }
}

impl Report {
    /// The points of each method with each ratio.
    pub fn methods(&self) -> impl Iterator<Item = &[Point]> {
        self.points.chunk_by(|a, b| a.method == b.method && a.ratio == b.ratio)
    }

    /// Fails if a method has answered no request of a point.
    ///
    /// # Errors
    /// Returns an error with the first failure of such a method.
    pub fn check(&self) -> Result<()> {
        let silent = self.points.iter().find(|point| point.failures == point.requests);
        let Some(silent) = silent else { return Ok(()) };
        let of = |row: &&FailureRow| row.method == silent.method && row.ratio == silent.ratio;
        let Some(row) = self.failures.iter().rfind(of) else { return Ok(()) };
        let reason = format!("{} has answered nothing of {}: {}", silent.method, silent.task, row.failure);
        Err(Error::Interrupted { exit_code: row.exit_code, reason })
    }
}
