//! Failures as a user sees them: one line, and an exit code that names their kind.

use std::fmt;

use tributary_protocol::exit;

use crate::bench::Over;
use crate::doctor::Unfit;
use crate::group::GroupSettings;
use crate::ranks::agreement::Disagreement;
use crate::spoilt::Spoilt;

/// Something in the command line that cannot be.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Something in the way the program was started or built that does not fit.
#[derive(Debug)]
pub struct Configuration(pub String);

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Configuration {}

/// An error of configuration.
pub fn configuration(what: impl Into<String>) -> anyhow::Error {
    Configuration(what.into()).into()
}

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

/// A device has less memory than it was told to use.
#[derive(Debug)]
pub struct TooLittle {
    /// What was asked for.
    pub needed_bytes: u64,
    /// What there is.
    pub free_bytes: u64,
}

impl fmt::Display for TooLittle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (needed, free) = (gib(self.needed_bytes), gib(self.free_bytes));
        write!(f, "--device-memory {needed:.1} GiB: {free:.1} GiB are free on the device")
    }
}

impl std::error::Error for TooLittle {}

/// An error of bad usage.
pub fn usage(what: impl Into<String>) -> anyhow::Error {
    Usage(what.into()).into()
}

/// Whether a failure is the group's end, brought about and told elsewhere: by another rank, or another thread of this one.
pub fn is_told_elsewhere(error: &anyhow::Error) -> bool {
    use tributary_comm::Error::Aborted;
    let own = [
        matches!(error.downcast_ref(), Some(Aborted { .. })),
        matches!(error.downcast_ref(), Some(tributary_worker::Error::Comm(Aborted { .. }))),
        matches!(error.downcast_ref(), Some(tributary_coordinator::Error::Link(Aborted { .. }))),
    ];
    own.contains(&true)
}

/// The exit code of a failure: 64 usage, 65 integrity, 69 rank lost, 70 a bug, 71 out of memory, 74 disk, 75 deadline,
/// 76 version skew, 78 configuration.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<tributary_coordinator::Error>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<tributary_worker::Error>() {
        return error.exit_code();
    }
    if error.downcast_ref::<Usage>().is_some() {
        return exit::USAGE;
    }
    if error.downcast_ref::<Configuration>().is_some() {
        return exit::CONFIGURATION;
    }
    if let Some(error) = error.downcast_ref::<Disagreement>() {
        return error.exit_code();
    }
    if let Some(Over(failure)) = error.downcast_ref() {
        return failure.exit_code;
    }
    if let Some(error) = error.downcast_ref::<Unfit>() {
        return error.exit_code;
    }
    if let Some(error) = error.downcast_ref::<tributary_comm::Error>() {
        return error.exit_code();
    }
    if error.downcast_ref::<Spoilt>().is_some() {
        return exit::BUG;
    }
    if error.downcast_ref::<Exhausted>().is_some() || error.downcast_ref::<TooLittle>().is_some() {
        return exit::OUT_OF_MEMORY;
    }
    if error.downcast_ref::<std::io::Error>().is_some() {
        return exit::DISK;
    }
    exit::BUG
}

/// The failure in one line, causes included.
pub fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
