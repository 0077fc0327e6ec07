//! The scaling study of the time to first token: a sweep of lengths, ranks, methods, ratios and states of the chunk cache. Every
//! sample is kept, and what was measured stands beside what was predicted.

pub mod calibrate;
pub mod dry_run;
mod output;
mod predict;
mod provenance;
mod reuse;
mod rounds;
mod run;
mod targets;

use tributary_coordinator::forecast::Profile;
use tributary_engine::Engine;

pub use self::output::{Output, read};
pub use self::targets::{Sweep, Target, targets};
use crate::busy::Watch;
use crate::error::Result;
use crate::schema::{Design, Point, SCHEMA, Study};

/// The study to be filled: a new one, or the one that was interrupted.
///
/// # Errors
/// What is to be gone on with is another study; program or model cannot be read.
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

/// Runs what is missing in a study and writes its files. `tell` is told how far it is, in words and from 0 to 1.
///
/// # Errors
/// What cannot be written; a failure after which nothing can run.
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

/// The failure of a study of which a point has no sample at all.
///
/// # Errors
/// There is such a point.
pub fn check(study: &Study) -> Result<()> {
    match study.points.iter().find_map(|point| point.failures.last().filter(|_| point.samples.is_empty())) {
        Some(failure) => Err(rounds::interrupted(failure)),
        None => Ok(()),
    }
}
