//! Messages of ranks to `tributary launch`: the work is complete, or it failed with a reason. A
//! service also reports that it can be asked to end in order, and that it does.
//!
//! Each is one line on standard error, which `launch` removes. mpirun's exit code is not enough: it
//! was 0 after the loss of a host's daemon. Without the variable nothing is written, so that a bare
//! mpirun shows no such lines.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;

/// The environment variable that holds the id of the attempt: 16 hexadecimal digits, new for each.
pub const LAUNCH_ID: &str = "TRIBUTARY_LAUNCH_ID";

const COMPLETED: &str = "tributary-completed";
const FAILED: &str = "tributary-failed";
const SERVING: &str = "tributary-serving";
const DRAINING: &str = "tributary-draining";

/// Message of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// The command's work is done and its output is in the launcher's hands; whether that could
    /// write it, it does not tell.
    Completed,
    /// A rank gave up.
    Failed(Failed),
    /// The ranks serve requests, and end in order when rank 0 gets SIGUSR1.
    Serving,
    /// The service was asked to end: it completes requests in progress, without a time limit, and
    /// takes no new ones.
    Draining,
}

/// A rank that gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// Exit code of its cause.
    pub exit_code: u8,
    /// Which.
    pub rank: usize,
}

/// Reports that the work is complete: rank 0, after its output has been flushed.
pub fn completed() {
    write(|id| format!("{COMPLETED} {id}\n"));
}

/// Reports that this rank gives up, with its exit code.
pub fn failed(rank: usize, exit_code: u8) {
    write(|id| format!("{FAILED} {id} {exit_code} {rank}\n"));
}

/// Reports that all ranks serve and that SIGUSR1 asks them to end in order: rank 0.
pub fn serving() {
    write(|id| format!("{SERVING} {id}\n"));
}

/// Reports that the service ends in order: rank 0.
pub fn draining() {
    write(|id| format!("{DRAINING} {id}\n"));
}

/// One write of a whole line, so that no other rank's output comes between. If it cannot be
/// written, the exit code alone must do.
fn write(line: impl Fn(&str) -> String) {
    if let Ok(id) = std::env::var(LAUNCH_ID) {
        let _ = std::io::stderr().write_all(line(&id).as_bytes());
    }
}

/// An id for an attempt, unique up to a chance of 1 in 2^64.
pub fn draw() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Offset of a line's marker, and the marker. Other text may precede it: a tag of mpirun's, or the
/// text of another rank that did not end its line.
pub fn find(line: &str, id: &str) -> Option<(usize, Marker)> {
    let bare = [(COMPLETED, Marker::Completed), (SERVING, Marker::Serving), (DRAINING, Marker::Draining)];
    for (word, marker) in bare {
        if let Some((start, rest)) = after(line, word, id) {
            return rest.trim().is_empty().then_some((start, marker));
        }
    }
    let (start, rest) = after(line, FAILED, id)?;
    let (exit_code, rank) = rest.trim().split_once(' ')?;
    Some((start, Marker::Failed(Failed { exit_code: exit_code.parse().ok()?, rank: rank.parse().ok()? })))
}

fn after<'a>(line: &'a str, word: &str, id: &str) -> Option<(usize, &'a str)> {
    let text = format!("{word} {id}");
    let start = line.find(&text)?;
    Some((start, &line[start + text.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef";

    #[test]
    fn markers_are_read() {
        let failed = Marker::Failed(Failed { exit_code: 75, rank: 3 });
        assert_eq!(find("tributary-completed 0123456789abcdef", ID), Some((0, Marker::Completed)));
        assert_eq!(find("tributary-completed 0123456789abcdef\r\n", ID), Some((0, Marker::Completed)));
        assert_eq!(find("tributary-failed 0123456789abcdef 75 3\n", ID), Some((0, failed)));
        assert_eq!(find("tributary-serving 0123456789abcdef\n", ID), Some((0, Marker::Serving)));
        assert_eq!(find("x tributary-draining 0123456789abcdef\n", ID), Some((2, Marker::Draining)));
        assert_eq!(find("[1,3]<stderr>:tributary-failed 0123456789abcdef 75 3\n", ID), Some((14, failed)));
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "",
            "tributary-completed",
            "tributary-completed 0000000000000000",
            "tributary-completed 0123456789abcdef0",
            "tributary-serving 0000000000000000",
            "tributary-draining 0123456789abcdef 1",
            "tributary-failed 0123456789abcdef",
            "tributary-failed 0123456789abcdef 75",
            "tributary-failed 0123456789abcdef 256 0",
            "tributary-failed 0123456789abcdef 75 -1",
            "tributary: rank 2: lost",
        ] {
            assert_eq!(find(line, ID), None, "{line}");
        }
    }

    #[test]
    fn ids_differ_and_have_16_digits() {
        let (one, other) = (draw(), draw());
        assert_ne!(one, other);
        assert!(one.len() == 16 && one.bytes().all(|digit| digit.is_ascii_hexdigit()), "{one}");
    }
}
