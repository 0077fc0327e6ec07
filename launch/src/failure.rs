//! Failures as a user sees them: one line, and an exit code that names their kind.

use std::fmt;

use crate::group::GroupSettings;

/// Something in the command line that cannot be.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The system has no threads to give to the ranks.
#[derive(Debug)]
pub struct Exhausted {
    /// What the system said.
    pub cause: std::io::Error,
    /// What was to be started.
    pub settings: GroupSettings,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupSettings { world, threads, .. } = self.settings;
        write!(f, "cannot start {world} ranks of {threads} threads: {}; use fewer", self.cause)
    }
}

impl std::error::Error for Exhausted {}

/// An error of bad usage.
pub fn usage(what: impl Into<String>) -> anyhow::Error {
    Usage(what.into()).into()
}

/// The exit code of a failure: 64 usage, 65 integrity, 69 rank lost, 70 a bug, 71 out of memory, 74 disk, 75 deadline.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<tributary_coordinator::Error>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<tributary_worker::Error>() {
        return error.exit_code();
    }
    if error.downcast_ref::<Usage>().is_some() {
        return 64;
    }
    if error.downcast_ref::<Exhausted>().is_some() {
        return 71;
    }
    if error.downcast_ref::<std::io::Error>().is_some() {
        return 74;
    }
    70
}

/// The failure in one line, causes included.
pub fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
