//! The blocks that mpirun itself prints between two lines of dashes, and their meaning for the end
//! of a job.
//!
//! The texts are those of Open MPI 4.1 and 5.0. A block that is not known loses nothing: it is
//! shown as it came.

use std::fmt;

/// A line of dashes as mpirun prints it before and after a block.
const DASHES: usize = 74;

/// A block, dashes included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Block {
    /// Its lines as they came, each with its end.
    pub lines: Vec<Vec<u8>>,
}

/// Meaning of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Says {
    /// A rank or a host was lost.
    Lost(Loss),
    /// The job has ended because a rank ended; which is said better elsewhere.
    Ended,
    /// mpirun could not start the job, for this reason.
    Refused(String),
    /// Anything else, such as a warning.
    Other,
}

/// Lost process or host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// A rank.
    Rank {
        /// Which.
        rank: usize,
        /// Its process number, where mpirun knew it.
        pid: Option<u32>,
        /// Its host.
        host: String,
        /// Kind of its end.
        how: String,
    },
    /// mpirun's daemon on a host.
    Host(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank { rank, pid: Some(pid), host, how } => write!(f, "rank {rank} on {host} (pid {pid}) {how}"),
            Self::Rank { rank, pid: None, host, how } => write!(f, "rank {rank} on {host} {how}"),
            Self::Host(host) => write!(f, "host {host} was lost: mpirun's daemon there does not answer"),
        }
    }
}

/// Whether a line is one of dashes. Open MPI 5 may leave a space before them.
pub fn is_dashes(line: &str) -> bool {
    let line = line.trim();
    line.len() == DASHES && line.bytes().all(|byte| byte == b'-')
}

impl Block {
    /// Meaning of the block.
    pub fn says(&self) -> Says {
        let text = self.text();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(loss) = killed_rank(&words).or_else(|| early_rank(&words)).or_else(|| lost_host(&words)) {
            return Says::Lost(loss);
        }
        let ends = [
            "detected that one or more processes exited with non-zero status",
            "Per user-direction, the job has been aborted",
            "MPI_ABORT was invoked on rank",
            "has exited due to process rank",
        ];
        if ends.iter().any(|end| words.contains(end)) {
            return Says::Ended;
        }
        let refusals =
            ["unable to", "not enough slots", "unexpectedly failed", "attempt to run as root", "unrecognized"];
        if refusals.iter().any(|refusal| words.contains(refusal)) {
            return Says::Refused(first_paragraph(&text));
        }
        Says::Other
    }

    fn text(&self) -> String {
        let lines = self.lines.iter().map(|line| String::from_utf8_lossy(line).trim_end().to_owned());
        lines.filter(|line| !is_dashes(line)).collect::<Vec<_>>().join("\n")
    }
}

/// `noticed that process rank 2 with PID 12 on node a exited on signal 9 (Killed).`
fn killed_rank(words: &str) -> Option<Loss> {
    let (_, rest) = words.split_once("noticed that process rank ")?;
    let how = number(rest.split_once("exited on signal ")?.1)?;
    rank(rest, format!("was killed by signal {how}"))
}

/// `has exited due to process rank 2 with PID 12 on node a exiting improperly.`
fn early_rank(words: &str) -> Option<Loss> {
    let (_, rest) = words.split_once("has exited due to process rank ")?;
    if rest.contains("calling \"abort\"") {
        return None;
    }
    rank(rest, "ended without leaving MPI".to_owned())
}

/// `2 with PID 12 on node a ..`. A number 0 means that mpirun has forgotten it.
fn rank(rest: &str, how: String) -> Option<Loss> {
    let pid = number(rest.split_once("with PID ")?.1).filter(|&pid| pid > 0);
    let host = rest.split_once("on node ")?.1.split(' ').next()?.to_owned();
    Some(Loss::Rank { rank: usize::try_from(number(rest)?).ok()?, pid, host, how })
}

/// `has lost communication with a remote daemon. HNP daemon : [..] on node a Remote daemon: [..] on
/// node b ..`
fn lost_host(words: &str) -> Option<Loss> {
    let (_, rest) = words.split_once("lost communication with a remote daemon")?;
    let remote = rest.split_once("Remote daemon").map_or(rest, |(_, remote)| remote);
    let host = remote.split_once("on node ").and_then(|(_, host)| host.split(' ').next());
    Some(Loss::Host(host.unwrap_or("unknown").to_owned()))
}

fn number(text: &str) -> Option<u32> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..digits].parse().ok()
}

/// The first paragraph in one line, and the one after it where it ends with a colon.
fn first_paragraph(text: &str) -> String {
    let mut words = Vec::new();
    for line in text.trim_start().lines() {
        let blank_after_some = line.trim().is_empty() && !words.is_empty();
        if blank_after_some && !words.last().is_some_and(|word: &&str| word.ends_with(':')) {
            break;
        }
        words.extend(line.split_whitespace());
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(text: &str) -> Says {
        let dashes = format!("{}\n", "-".repeat(DASHES));
        let lines = text.lines().map(|line| format!("{line}\n").into_bytes());
        let block = Block { lines: [dashes.clone().into()].into_iter().chain(lines).chain([dashes.into()]).collect() };
        block.says()
    }

    fn lost(says: Says) -> String {
        match says {
            Says::Lost(loss) => loss.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dashes_are_known() {
        assert!(is_dashes(&"-".repeat(74)));
        assert!(is_dashes(&format!(" {}\r", "-".repeat(74))));
        assert!(!is_dashes(&"-".repeat(73)));
        assert!(!is_dashes(&format!("{}x", "-".repeat(73))));
        assert!(!is_dashes(""));
    }

    #[test]
    fn a_killed_rank() {
        let four = "mpirun noticed that process rank 2 with PID 0 on node vm exited on signal 9 (Killed).";
        assert_eq!(lost(says(four)), "rank 2 on vm was killed by signal 9");
        let five = "prterun noticed that process rank 13 with PID 14945 on node n-1.x exited on\n\
                    signal 11 (Segmentation fault).";
        assert_eq!(lost(says(five)), "rank 13 on n-1.x (pid 14945) was killed by signal 11");
        let early = "mpirun has exited due to process rank 1 with PID 12 on node a exiting improperly.\n\
                     There are three reasons";
        assert_eq!(lost(says(early)), "rank 1 on a (pid 12) ended without leaving MPI");
    }

    #[test]
    fn a_lost_host() {
        let text = "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[1,0],0] on node a\n  \
                    Remote daemon: [[1,0],1] on node 10.1.2.3\n\nThis is usually due to";
        assert!(lost(says(text)).contains("host 10.1.2.3 was lost"));
        assert!(lost(says("PRTE has lost communication with a remote daemon.")).contains("host unknown"));
    }

    #[test]
    fn ends_that_are_said_better_elsewhere() {
        let two = "Primary job  terminated normally, but 1 process returned\n\
                   a non-zero exit code. Per user-direction, the job has been aborted.";
        assert_eq!(says(two), Says::Ended);
        let five = "prterun detected that one or more processes exited with non-zero status,\n\
                    thus causing the job to be terminated.";
        assert_eq!(says(five), Says::Ended);
        assert_eq!(says("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD"), Says::Ended);
        let abort = "prterun has exited due to process rank 1 with PID 0 on node vm calling\n\"abort\". This may have";
        assert_eq!(says(abort), Says::Ended);
    }

    #[test]
    fn jobs_that_do_not_start() {
        let slots = "There are not enough slots available in the system to satisfy the 4\n\
                     slots that were requested by the application:\n\n  true\n\nEither request";
        let Says::Refused(why) = says(slots) else { panic!("{slots}") };
        assert!(why.starts_with("There are not enough slots") && why.ends_with("application: true"), "{why}");
        let missing = "mpirun was unable to launch the specified application as it could not access\n\
                       or execute an executable:\n\nExecutable: /no/t\nNode: vm\n\nwhile";
        let Says::Refused(why) = says(missing) else { panic!("{missing}") };
        assert!(why.ends_with("Executable: /no/t Node: vm"), "{why}");
    }

    #[test]
    fn anything_else() {
        assert_eq!(says("There was an error initializing an OpenFabrics device."), Says::Other);
        assert_eq!(says(""), Says::Other);
        assert_eq!(says("noticed that process rank x with PID y on node"), Says::Other);
    }
}
