//! The order of a study: warm-ups, then counted runs; in each round every point once, in a random
//! order. A round that is over is saved.

use std::time::{Duration, Instant};

use crate::order::order;
use crate::scaling::is_full;
use crate::schema::{Accuracy, Design, Failure, Point, Sample, Study, summary};

use crate::error::{Error, Result};

/// Failures after which a point is given up.
const FAILURES: usize = 2;

/// Runner of points.
pub trait PointRunner {
    /// One run of a point. After a failure the next run starts its ranks anew.
    ///
    /// # Errors
    /// Returns the failure of this run with its cause.
    fn run(&mut self, point: usize, run: usize) -> std::result::Result<Run, Failure>;

    /// Whether there can be a run after a failure.
    fn can_go_on(&self) -> bool;
}

/// One run.
pub struct Run {
    /// Sample of the run.
    pub sample: Sample,
    /// The first token's logits.
    pub logits: Vec<f32>,
}

/// Runs the missing points of a study. `tell` gets the progress, in words and from 0 to 1. `save`
/// gets the study before the first run, after each counted round, and at an early end.
///
/// # Errors
/// Returns an error if a result cannot be saved, or if a failure leaves nothing that can run.
pub fn measure(
    study: &mut Study,
    runner: &mut dyn PointRunner,
    tell: &dyn Fn(String, f64),
    save: &mut dyn FnMut(&Study) -> Result<()>,
) -> Result<()> {
    let (warmups, repeats) = (study.design.warmups, study.design.repeats);
    let done = rounds_done(study);
    if done >= repeats {
        return Ok(());
    }
    // From here on the folder holds this study instead of any earlier one.
    save(study)?;
    let mut rounds = Rounds::new(study, runner, tell, warmups + repeats - done);
    for round in 0..warmups {
        let gone_on = rounds.round(round, false);
        if gone_on.is_err() {
            save(rounds.study)?;
        }
        gone_on?;
    }
    for round in warmups + done..warmups + repeats {
        let gone_on = rounds.round(round, true);
        rounds.conclude();
        save(rounds.study)?;
        gone_on?;
    }
    Ok(())
}

/// Number of complete counted rounds of a study: every point that was not given up has run in them,
/// or failed there.
pub fn rounds_done(study: &Study) -> usize {
    let Design { warmups, repeats, seed, .. } = study.design;
    let count = study.points.len();
    let is_done = |round: &usize| {
        let places = order(seed, *round, count).into_iter().enumerate();
        places.into_iter().all(|(place, point)| is_over(&study.points[point], round * count + place))
    };
    (warmups..warmups + repeats).take_while(is_done).count()
}

/// Whether a run of a point is not to come any more: it is there already, failures included, or the
/// point was given up.
fn is_over(point: &Point, run: usize) -> bool {
    point.failures.len() >= FAILURES
        || point.samples.iter().any(|sample| sample.run == run)
        || point.failures.iter().any(|failure| failure.run == run)
}

struct Rounds<'a> {
    study: &'a mut Study,
    runner: &'a mut dyn PointRunner,
    tell: &'a dyn Fn(String, f64),
    logits: Vec<Option<Vec<f32>>>,
    /// Time of each point's last run.
    took: Vec<Option<Duration>>,
    rounds_left: usize,
    runs_done: usize,
    runs: usize,
}

impl<'a> Rounds<'a> {
    fn new(
        study: &'a mut Study,
        runner: &'a mut dyn PointRunner,
        tell: &'a dyn Fn(String, f64),
        rounds: usize,
    ) -> Self {
        let count = study.points.len();
        let (logits, took) = (vec![None; count], vec![None; count]);
        Self { study, runner, tell, logits, took, rounds_left: rounds, runs_done: 0, runs: rounds * count }
    }

    /// Runs every point once, but for those that were given up, and for runs that an interrupted
    /// study has already.
    fn round(&mut self, round: usize, counted: bool) -> Result<()> {
        let count = self.study.points.len();
        self.rounds_left -= 1;
        for (place, point) in order(self.study.design.seed, round, count).into_iter().enumerate() {
            let run = round * count + place;
            if !is_over(&self.study.points[point], run) {
                (self.tell)(self.progress(point, place, counted), self.runs_done as f64 / self.runs.max(1) as f64);
                self.one(point, run, counted)?;
            }
            self.runs_done += 1;
        }
        Ok(())
    }

    fn one(&mut self, point: usize, run: usize, counted: bool) -> Result<()> {
        let began = Instant::now();
        let result = self.runner.run(point, run);
        self.took[point] = Some(began.elapsed());
        let entry = &mut self.study.points[point];
        match result {
            Ok(run) => {
                self.logits[point].get_or_insert(run.logits);
                if counted {
                    entry.samples.push(run.sample);
                }
                Ok(())
            }
            Err(failure) => {
                entry.failures.push(failure.clone());
                if !self.runner.can_go_on() {
                    return Err(interrupted(&failure));
                }
                tracing::warn!(point = entry.id, run, "failed: {}", failure.cause);
                Ok(())
            }
        }
    }

    /// Progress, and the expected time of the rest: each point as long as its last run.
    fn progress(&self, point: usize, place: usize, counted: bool) -> String {
        let known: Vec<f64> = self.took.iter().flatten().map(Duration::as_secs_f64).collect();
        let what = if counted { "" } else { "warm-up, " };
        let head = format!("{what}run {} of {}: {}", self.runs_done + 1, self.runs, self.study.points[point].id);
        if known.is_empty() {
            return head;
        }
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let a_round: f64 = self.took.iter().map(|took| took.map_or(mean, |took| took.as_secs_f64())).sum();
        let this_round = a_round * (self.took.len() - place) as f64 / self.took.len() as f64;
        let left_s = this_round + a_round * self.rounds_left as f64;
        format!("{head}; about {} left", duration(left_s))
    }

    /// Computes the summaries of the samples so far.
    fn conclude(&mut self) {
        for index in 0..self.study.points.len() {
            let tokens = self.study.points[index].context_tokens;
            let full = self.study.points.iter().position(|point| is_full(point) && point.context_tokens == tokens);
            let reference = full.and_then(|full| self.logits[full].as_deref());
            let accuracy = self.logits[index].as_deref().zip(reference);
            let point = &mut self.study.points[index];
            let times: Vec<f64> = point.samples.iter().map(|sample| sample.ttft_ms).collect();
            point.summary = summary(&times);
            point.accuracy = accuracy.map(|(own, full)| Accuracy::between(own, full)).or(point.accuracy.take());
        }
    }
}

/// A duration for a reader.
pub fn duration(seconds: f64) -> String {
    match seconds {
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// The error of a failure after which nothing can run.
pub fn interrupted(failure: &Failure) -> Error {
    let reason = format!("{}; what was measured before is saved: --resume goes on", failure.cause);
    Error::Interrupted { exit_code: failure.exit_code, reason }
}

#[cfg(test)]
mod tests;
