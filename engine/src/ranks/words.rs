//! The last words of a process: whether it says why it ends, or leaves that to another.

use std::io::Write;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::discover::launcher;
use crate::marker;

/// Time that a process that fails before it serves leaves the report to rank 0, which may fail
/// alike: longer than a launcher takes to end the others.
const FIRST_WORD: Duration = Duration::from_secs(3);

/// Time of a failed rank to report its cause, before others end.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Says in one line why this process ends before it has met others. All processes of a launcher get
/// the same arguments: if rank 0 finds the same fault, its line is enough.
pub fn refuse(line: &str, exit_code: u8) -> ! {
    let rank = launcher().map_or(0, |launcher| launcher.rank);
    if rank == 0 || !told_to_end_within(FIRST_WORD) {
        say(rank, line, exit_code);
    }
    // Threads of MPI may hang: they must not be waited for.
    std::process::exit(exit_code.into())
}

/// Whether SIGTERM comes in that time: then another rank has said enough. The signal's own exit
/// code would be taken for the job's, because srun gives the largest.
fn told_to_end_within(limit: Duration) -> bool {
    let Ok(mut signals) = Signals::new([SIGTERM]) else {
        std::thread::sleep(limit);
        return false;
    };
    let began = Instant::now();
    while began.elapsed() < limit {
        if signals.pending().next().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Ends this process because of another rank's failure, which is reported there. The first process
/// to end makes the launcher end all others, so the one with the report goes first.
pub(super) fn end_quietly(exit_code: u8) -> ! {
    std::thread::sleep(LAST_WORD);
    std::process::exit(exit_code.into())
}

/// One line on standard error (a table has more), and the marker for `tributary launch`. If that
/// cannot be written, the exit code alone must do.
pub(super) fn say(rank: usize, line: &str, exit_code: u8) {
    let named = rank == 0 || line.starts_with("rank ");
    let text = if named { format!("tributary: {line}\n") } else { format!("tributary: rank {rank}: {line}\n") };
    let _ = std::io::stderr().write_all(text.as_bytes());
    marker::failed(rank, exit_code);
}
