//! Running a job until it succeeds, fails for good, or has been started often enough; and telling
//! the user.

use std::sync::PoisonError;

use tributary_engine::marker;

use crate::blocks::Says;
use crate::line::Line;
use crate::outcome::{Ended, Verdict, judge};
use crate::supervise::{Job, Limits, Out, supervise};

/// A job and how often it may be started.
#[derive(Debug, Clone)]
pub struct Series {
    /// Command line to run.
    pub line: Line,
    /// The launcher's name, for messages.
    pub launcher: String,
    /// Maximum number of restarts.
    pub restarts: u32,
    /// Whether all that mpirun itself says is shown.
    pub verbose: bool,
    /// Limits of the launcher's end.
    pub limits: Limits,
}

/// Runs the job and gives the exit code. `interrupt` gives a signal that came in since it was last
/// asked.
///
/// # Errors
/// Returns an error if the launcher cannot be started or waited for.
pub fn run(series: &Series, out: &Out, interrupt: &mut dyn FnMut() -> Option<i32>) -> std::io::Result<u8> {
    let attempts = u64::from(series.restarts) + 1;
    let mut attempt = 1;
    loop {
        let id = marker::draw();
        let job = Job { command: series.line.command(&id), launcher: series.launcher.clone(), id };
        let ended = supervise(job, series.limits, out, interrupt)?;
        let verdict = judge(&ended);
        write(out, &report(&ended, &verdict, series.verbose));
        if !verdict.worth_another || attempt == attempts {
            return Ok(verdict.exit_code);
        }
        attempt += 1;
        write(out, format!("tributary: attempt {attempt} of {attempts} after: {}\n", verdict.reason).as_bytes());
    }
}

/// If it cannot be written, the exit code alone must do.
fn write(out: &Out, bytes: &[u8]) {
    let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// Reports the cause first, where no rank has reported it; then the last remarks, and those of
/// mpirun's blocks that say more.
fn report(ended: &Ended, verdict: &Verdict, verbose: bool) -> Vec<u8> {
    let mut report = Vec::new();
    if verdict.untold {
        report.extend(format!("tributary: {}\n", verdict.reason).into_bytes());
    }
    report.extend(&ended.remarks);
    for block in &ended.blocks {
        if verbose || matches!(block.says(), Says::Refused(_) | Says::Other) {
            report.extend(block.lines.concat());
        }
    }
    report
}
