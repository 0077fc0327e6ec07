//! Runs a point's request on the ranks, and takes a sample of it.

use std::time::{Duration, Instant};

use crate::busy::Watch;
use crate::schema::{Cache, Failure, PhaseTime, RankSample, Sample, SpanTime};
use tributary_coordinator::Report;
use tributary_engine::{Answered, Engine, Question, RunConfig, one_line};
use tributary_planner::ModelShape;
use tributary_protocol::ChunkCacheReport;

use super::predict;
use super::reuse::primer;
use super::rounds::{PointRunner, Run};
use super::targets::Target;
use crate::error::{Error, Result};
use tributary_system::memory;

/// Longest time of ranks for writing the chunks that a point reads.
const LAST_WRITES: Duration = Duration::from_secs(60);

/// The ranks of an engine, as a study sees them.
pub struct EngineRunner<'a, 's> {
    engine: &'a mut Engine<'s>,
    targets: &'a [Target],
    shape: ModelShape,
}

impl<'a, 's> EngineRunner<'a, 's> {
    /// A runner on an engine that has checked these targets.
    pub fn new(engine: &'a mut Engine<'s>, targets: &'a [Target]) -> Self {
        let shape = engine.folder().shape();
        Self { engine, targets, shape }
    }

    /// Starts the ranks where they do not run (those that failed included), and answers the
    /// request.
    fn answer(&mut self, point: usize) -> Result<Answered> {
        let Target { question, run_config, cache } = &self.targets[point];
        self.engine.start(run_config)?;
        let answered = self.answer_in(*cache, question, run_config)?;
        if all_came(&answered, run_config) {
            return Ok(answered);
        }
        // The chunks are not there the first time, nor after other requests have taken their
        // memory. This run is not counted.
        self.engine.answer(question, &primer(run_config))?;
        let mut answered = self.answer_in(*cache, question, run_config)?;
        // Ranks write after their answers, and report it with later ones.
        let until = Instant::now() + if cache.is_stored() { LAST_WRITES } else { Duration::ZERO };
        while !all_came(&answered, run_config) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            answered = self.answer_in(*cache, question, run_config)?;
        }
        if all_came(&answered, run_config) {
            return Ok(answered);
        }
        Err(Error::usage(match cache.is_stored() {
            true => "its chunks are to come from the store, but they are not there: see --chunk-store-size, \
                     --chunk-store-reserve, and what the log says"
                .to_owned(),
            false => format!(
                "{:?} of its chunks are to be warm, but they do not fit: give the ranks more with --chunk-cache",
                run_config.settings.reuse
            ),
        }))
    }

    /// Answers the request with the files of the store in the state that the point has them in.
    fn answer_in(&mut self, cache: Cache, question: &Question, run_config: &RunConfig) -> Result<Answered> {
        if let (Cache::DiskDropped, Some(store)) = (cache, self.engine.store()) {
            store.drop_pages();
        }
        Ok(self.engine.answer(question, run_config)?)
    }
}

/// Whether as many chunks came from the chunk cache as the run is to have.
fn all_came(answered: &Answered, run_config: &RunConfig) -> bool {
    let plan = &answered.planned.plan;
    let sum = |of: fn(&ChunkCacheReport) -> usize| -> usize {
        answered.answer.reports.iter().map(|report| of(&report.chunk_cache)).sum()
    };
    // Chunks that are computed because that is faster belong to the state as well.
    let hits = if run_config.settings.from_store {
        sum(|cache| cache.from_store.loaded + cache.from_store.computed)
    } else {
        sum(|cache| cache.hits)
    };
    let wanted = (run_config.settings.reuse * plan.chunks.len() as f64 + 1e-9).floor() as usize;
    match plan.method.reuses_prefix() {
        true => sum(|cache| cache.hit_tokens) == plan.leading_rows(run_config.settings.reuse),
        false => !plan.method.in_chunks() || hits == wanted,
    }
}

impl PointRunner for EngineRunner<'_, '_> {
    fn run(&mut self, point: usize, run: usize) -> std::result::Result<Run, Failure> {
        let watch = Watch::start();
        let answered = self.answer(point);
        let busy = watch.seen();
        let answered =
            answered.map_err(|error| Failure { run, cause: one_line(&error), exit_code: error.exit_code() })?;
        let formula = predict::formula_bytes(&answered.planned, &answered.answer.outcome, &self.shape);
        let sample = Sample {
            wall_ms: Some(1e3 * busy.wall_s),
            cpu_ms: busy.cpu_s.map(|seconds| 1e3 * seconds),
            others_share: busy.others_share.zip(busy.stolen_share).map(|(others, stolen)| others + stolen),
            ..sample(&answered, &formula, run)
        };
        Ok(Run { sample, logits: answered.answer.outcome.logits.unwrap_or_default() })
    }

    fn can_go_on(&self) -> bool {
        self.engine.can_start_anew()
    }
}

/// Sample of one answered request.
fn sample(answered: &Answered, formula_bytes: &[u64], run: usize) -> Sample {
    let report = &answered.report;
    let phase = |row: &tributary_coordinator::report::PhaseRow| PhaseTime {
        phase: row.phase.to_owned(),
        ms: row.critical_path_ms,
        waited_ms: row.waited_ms,
    };
    Sample {
        run,
        ttft_ms: report.ttft_ms,
        paper_clock_ms: report.paper_clock_ms,
        phases: report.phases.iter().map(phase).collect(),
        unaccounted_ms: report.unaccounted_ms,
        ranks: ranks(report, formula_bytes),
        cache_hits: answered.answer.reports.iter().map(|report| report.chunk_cache.hits).sum(),
        stored_bytes: report.chunk_cache.store.loaded_bytes,
        peak_memory_bytes: memory::peak_bytes().unwrap_or(0),
        ..Sample::default()
    }
}

fn ranks(report: &Report, formula_bytes: &[u64]) -> Vec<RankSample> {
    let span = |row: &tributary_coordinator::report::SpanRow| SpanTime {
        phase: row.phase.to_owned(),
        start_ms: row.start_ms,
        ms: row.ms,
        waited_ms: row.waited_ms,
    };
    let rank = |row: &tributary_coordinator::report::RankRow| RankSample {
        rank: row.rank,
        spans: row.spans.iter().map(span).collect(),
        received_bytes: row.tensor_bytes_received,
        formula_bytes: formula_bytes[row.rank],
        waited_ms: row.waited_ms,
    };
    assert_eq!(formula_bytes.len(), report.ranks.len(), "ranks that receive, by formula and by count");
    report.ranks.iter().map(rank).collect()
}
