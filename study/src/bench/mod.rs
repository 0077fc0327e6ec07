//! The scaling study of the time to first token: a sweep of lengths, ranks, methods, ratios and
//! states of the chunk cache. Every sample is kept, and measurements are reported beside
//! predictions.

pub mod calibrate;
pub mod dry_run;
mod output;
mod predict;
mod provenance;
mod reuse;
mod rounds;
mod run;
mod targets;

use tributary_engine::Engine;
use tributary_planner::forecast::Profile;

pub use self::output::{Output, read};
pub use self::targets::{Sweep, Target, targets};
use crate::busy::Watch;
use crate::error::Result;
use crate::schema::{Design, Point, SCHEMA, Study};

/// The study to be filled: a new one, or the one that was interrupted.
///
/// # Errors
/// Returns an error if the study to resume is another one, or if the program or the model cannot be
/// read.
pub fn begin(
    design: Design,
    points: Vec<Point>,
    engine: &Engine<'_>,
    profile: Option<&Profile>,
    earlier: Option<Study>,
) -> Result<Study> {
    let provenance = provenance::provenance(engine, profile)?;
    let study = Study { schema: SCHEMA.to_owned(), provenance, design, points, busy: Vec::new() };
    match earlier {
        None => Ok(study),
        Some(earlier) => {
            output::same(&earlier, &study)?;
            Ok(earlier)
        }
    }
}

/// Runs the missing points of a study and writes its files. `tell` gets the progress, in words and
/// from 0 to 1.
///
/// # Errors
/// Returns an error if a file cannot be written, or if a failure leaves nothing that can run.
pub fn measure(
    study: &mut Study,
    mut engine: Engine<'_>,
    targets: &[Target],
    output: &Output,
    tell: &dyn Fn(String, f64),
) -> Result<()> {
    let mut ranks = run::EngineRunner::new(&mut engine, targets);
    let watch = Watch::start();
    let is_done = rounds::rounds_done(study) >= study.design.repeats;
    rounds::measure(study, &mut ranks, tell, &mut |study| {
        let mut so_far = study.clone();
        so_far.busy.push(watch.seen());
        output.save(&so_far)
    })?;
    if !is_done {
        study.busy.push(watch.seen());
    }
    engine.end()?;
    output.finish(study)
}

/// Fails if a point of the study has no sample at all.
///
/// # Errors
/// Returns an error if there is such a point.
pub fn check(study: &Study) -> Result<()> {
    match study.points.iter().find_map(|point| point.failures.last().filter(|_| point.samples.is_empty())) {
        Some(failure) => Err(rounds::interrupted(failure)),
        None => Ok(()),
    }
}
