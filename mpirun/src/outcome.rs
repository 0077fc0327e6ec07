//! Meaning of a job's end: its exit code, its cause in one line, and whether another attempt makes
//! sense. Pure.
//!
//! Messages of ranks count for more than mpirun's exit code. After the completion marker the job
//! has succeeded, and without it the job has failed.

use tributary_engine::marker::Failed;
use tributary_protocol::exit;

use crate::blocks::{Block, Loss, Says};

/// Exit code of a process that signal n ended, minus n.
const SIGNALLED: i32 = 128;
/// The numbers of SIGINT, SIGKILL and SIGTERM.
const INT: i32 = 2;
const TERM: i32 = 15;
/// The largest number of a signal.
const LAST_SIGNAL: i32 = 64;

/// End of the launcher's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It exited, with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// Not even by SIGKILL.
    Stuck,
}

/// All that is known of a job that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The launcher's name.
    pub launcher: String,
    /// End of the launcher's process.
    pub status: Status,
    /// Whether the completion marker was seen.
    pub completed: bool,
    /// The failure that a rank reported first.
    pub failed: Option<Failed>,
    /// Signal to us to end the job, unless its ranks end in order because of it.
    pub interrupt: Option<i32>,
    /// Whether its ranks have said that they end in order, as they were asked.
    pub drains: bool,
    /// Whether a line about the failure has been shown: a rank's, or ours about a signal.
    pub complained: bool,
    /// Messages of mpirun itself.
    pub blocks: Vec<Block>,
    /// Remarks of the MPI library that came last, and have not been shown.
    pub remarks: Vec<u8>,
}

impl Ended {
    /// A job of which only the launcher's name is known yet.
    pub fn stuck(launcher: String) -> Self {
        Self {
            launcher,
            status: Status::Stuck,
            completed: false,
            failed: None,
            interrupt: None,
            drains: false,
            complained: false,
            blocks: Vec::new(),
            remarks: Vec::new(),
        }
    }
}

/// Conclusion from a job's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Our exit code.
    pub exit_code: u8,
    /// Reason, in a few words; empty after success.
    pub reason: String,
    /// Whether the user has not seen the reason yet.
    pub untold: bool,
    /// Whether the same job may succeed if it is started again.
    pub worth_another: bool,
}

/// Whether an exit code only repeats that SIGINT or SIGTERM was sent. mpirun sends SIGTERM to all
/// ranks when one is lost, so their reports after it are no cause.
pub fn is_echo(exit_code: u8) -> bool {
    matches!(i32::from(exit_code) - SIGNALLED, INT | TERM)
}

/// Judges the end of a job.
pub fn judge(ended: &Ended) -> Verdict {
    if ended.completed {
        return Verdict { exit_code: 0, reason: String::new(), untold: false, worth_another: false };
    }
    let (exit_code, reason, told) = cause(ended);
    let worth_another = ended.interrupt.is_none()
        && !ended.drains
        && matches!(exit_code, exit::RANK_LOST | exit::OUT_OF_MEMORY | exit::DEADLINE);
    Verdict { exit_code, reason, untold: !told, worth_another }
}

/// Exit code, reason, and whether a line of a rank has reported it.
fn cause(ended: &Ended) -> (u8, String, bool) {
    let strong = ended.failed.filter(|failed| !is_echo(failed.exit_code));
    if let Some(failed) = strong {
        return (failed.exit_code, describe(failed), ended.complained);
    }
    if let Some(signal) = ended.interrupt {
        return (signal_code(signal), ended_by(signal), ended.complained);
    }
    if let Some(loss) = loss(&ended.blocks) {
        return (exit::RANK_LOST, loss.to_string(), false);
    }
    if let Some(failed) =
        ended.failed.filter(|_| !matches!(ended.status, Status::Exited(status) if other_signal(status)))
    {
        return (failed.exit_code, describe(failed), ended.complained);
    }
    by_status(ended)
}

fn by_status(ended: &Ended) -> (u8, String, bool) {
    let launcher = &ended.launcher;
    match ended.status {
        Status::Exited(0) => (exit::RANK_LOST, format!("{launcher} ended without the work being complete"), false),
        Status::Exited(status) if matches!(status - SIGNALLED, INT | TERM) => (
            signal_code(status - SIGNALLED),
            format!("{launcher} was ended by {}", name(status - SIGNALLED)),
            ended.complained,
        ),
        Status::Exited(status @ 64..=78) => {
            let code = u8::try_from(status).expect("64 to 78");
            (code, format!("a rank ended with exit code {code} ({})", kind(code)), ended.complained)
        }
        Status::Exited(status) => match refusal(&ended.blocks) {
            Some(why) => (exit::RANK_LOST, format!("{launcher} ended with status {status}: {why}"), false),
            None if other_signal(status) => {
                let signal = status - SIGNALLED;
                (
                    exit::RANK_LOST,
                    format!("a rank was killed by signal {signal} ({launcher} ended with status {status})"),
                    false,
                )
            }
            None => (exit::RANK_LOST, format!("{launcher} ended with status {status}"), false),
        },
        Status::Killed(signal @ (INT | TERM)) => {
            (signal_code(signal), format!("{launcher} was ended by {}", name(signal)), false)
        }
        Status::Killed(signal) => (exit::RANK_LOST, format!("{launcher} was killed by signal {signal}"), false),
        Status::Stuck => (exit::RANK_LOST, format!("{launcher} does not end, not even by SIGKILL"), false),
    }
}

/// Whether a status says that a rank was killed by a signal that we do not pass on.
fn other_signal(status: i32) -> bool {
    let signal = status - SIGNALLED;
    (1..=LAST_SIGNAL).contains(&signal) && !matches!(signal, INT | TERM)
}

fn loss(blocks: &[Block]) -> Option<Loss> {
    blocks.iter().find_map(|block| match block.says() {
        Says::Lost(loss) => Some(loss),
        _ => None,
    })
}

fn refusal(blocks: &[Block]) -> Option<String> {
    blocks.iter().find_map(|block| match block.says() {
        Says::Refused(why) => Some(why),
        _ => None,
    })
}

fn describe(failed: Failed) -> String {
    let Failed { exit_code, rank } = failed;
    format!("{}, reported by rank {rank} (exit code {exit_code})", kind(exit_code))
}

/// Kind of failure of an exit code.
fn kind(exit_code: u8) -> &'static str {
    match exit_code {
        exit::USAGE => "usage",
        exit::INTEGRITY => "integrity",
        exit::RANK_LOST => "rank lost",
        exit::BUG => "a bug",
        exit::OUT_OF_MEMORY => "out of memory",
        exit::DISK => "disk",
        exit::DEADLINE => "deadline",
        exit::VERSION_SKEW => "version skew",
        exit::CONFIGURATION => "configuration",
        130 | 143 => "a signal",
        _ => "failure",
    }
}

fn signal_code(signal: i32) -> u8 {
    u8::try_from(SIGNALLED + signal).unwrap_or(exit::RANK_LOST)
}

/// The cause of an end that a signal to us demanded.
pub fn ended_by(signal: i32) -> String {
    format!("ended by {}", name(signal))
}

fn name(signal: i32) -> String {
    match signal {
        INT => "SIGINT".to_owned(),
        TERM => "SIGTERM".to_owned(),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: Status) -> Ended {
        Ended { status, ..Ended::stuck("mpirun".to_owned()) }
    }

    fn block(text: &str) -> Block {
        Block { lines: text.lines().map(|line| format!("{line}\n").into_bytes()).collect() }
    }

    fn killed_rank() -> Block {
        block("mpirun noticed that process rank 2 with PID 7 on node a exited on signal 9 (Killed).")
    }

    /// Exit code, part of the reason, whether it is untold, whether another attempt makes sense.
    fn check(ended: &Ended, exit_code: u8, says: &str, untold: bool, worth_another: bool) {
        let verdict = judge(ended);
        assert!(verdict.reason.contains(says), "{verdict:?}");
        let found = (verdict.exit_code, verdict.untold, verdict.worth_another);
        assert_eq!(found, (exit_code, untold, worth_another), "{ended:?}");
    }

    #[test]
    fn completion_counts_whatever_mpirun_says() {
        for status in [Status::Exited(0), Status::Exited(137), Status::Killed(9), Status::Stuck] {
            let ended = Ended { completed: true, blocks: vec![killed_rank()], ..ended(status) };
            assert_eq!(judge(&ended).exit_code, 0, "{status:?}");
        }
    }

    #[test]
    fn no_marker_is_no_success() {
        check(&ended(Status::Exited(0)), 69, "without the work being complete", true, true);
    }

    #[test]
    fn a_ranks_own_word_comes_first() {
        for exit_code in [64, 65, 69, 70, 71, 74, 75, 76, 78] {
            let failed = Some(Failed { exit_code, rank: 3 });
            let again = matches!(exit_code, 69 | 71 | 75);
            for status in [Status::Exited(0), Status::Exited(137), Status::Exited(1), Status::Killed(9)] {
                let ended = Ended { failed, blocks: vec![killed_rank()], ..ended(status) };
                check(&ended, exit_code, &format!("reported by rank 3 (exit code {exit_code})"), true, again);
                check(&Ended { complained: true, ..ended }, exit_code, "rank 3", false, again);
            }
        }
    }

    #[test]
    fn a_signal_to_us() {
        for (signal, exit_code) in [(2, 130), (15, 143)] {
            let ended = Ended { interrupt: Some(signal), ..ended(Status::Exited(1)) };
            check(&ended, exit_code, "SIG", true, false);
            check(&Ended { status: Status::Killed(9), ..ended.clone() }, exit_code, "SIG", true, false);
            let failed_before = Ended { failed: Some(Failed { exit_code: 75, rank: 0 }), ..ended };
            check(&failed_before, 75, "rank 0", true, false);
        }
    }

    #[test]
    fn a_job_that_was_asked_to_end_is_not_started_again() {
        for status in [Status::Exited(1), Status::Exited(137), Status::Exited(75)] {
            assert!(judge(&ended(status)).worth_another, "{status:?}");
            let verdict = judge(&Ended { drains: true, ..ended(status) });
            assert!(!verdict.worth_another && verdict.exit_code != 0, "{verdict:?}");
        }
    }

    #[test]
    fn a_lost_rank() {
        let text = "rank 2 on a (pid 7) was killed by signal 9";
        check(&Ended { blocks: vec![killed_rank()], ..ended(Status::Exited(137)) }, 69, text, true, true);
        check(&ended(Status::Exited(139)), 69, "killed by signal 11", true, true);
        // Ranks report the SIGTERM that mpirun sent them because of the loss.
        let echo =
            Ended { failed: Some(Failed { exit_code: 143, rank: 0 }), complained: true, ..ended(Status::Exited(137)) };
        check(&echo, 69, "killed by signal 9", true, true);
        check(&Ended { blocks: vec![killed_rank()], ..echo }, 69, text, true, true);
    }

    #[test]
    fn signals_that_others_sent() {
        check(&ended(Status::Exited(130)), 130, "SIGINT", true, false);
        check(&ended(Status::Exited(143)), 143, "SIGTERM", true, false);
        check(&ended(Status::Killed(15)), 143, "SIGTERM", true, false);
        check(&ended(Status::Killed(9)), 69, "mpirun was killed by signal 9", true, true);
        let echo = Ended { failed: Some(Failed { exit_code: 143, rank: 1 }), ..ended(Status::Exited(1)) };
        check(&echo, 143, "rank 1", true, false);
    }

    #[test]
    fn codes_of_ranks_without_a_marker() {
        for status in 64..=78 {
            let again = matches!(status, 69 | 71 | 75);
            let code = u8::try_from(status).expect("a code");
            check(&ended(Status::Exited(status)), code, &format!("exit code {status}"), true, again);
            check(&Ended { complained: true, ..ended(Status::Exited(status)) }, code, "", false, again);
        }
        for status in [1, 63, 79, 101, 127, 128, 193, 255] {
            check(&ended(Status::Exited(status)), 69, &format!("mpirun ended with status {status}"), true, true);
        }
        check(&ended(Status::Stuck), 69, "SIGKILL", true, true);
    }

    #[test]
    fn a_job_that_mpirun_refuses() {
        let slots = block("There are not enough slots available in the system\n\nEither");
        let ended = Ended { blocks: vec![slots], ..ended(Status::Exited(132)) };
        check(&ended, 69, "mpirun ended with status 132: There are not enough slots", true, true);
    }
}
