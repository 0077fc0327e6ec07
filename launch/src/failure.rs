//! Failures as a user sees them: one line, and an exit code that names their kind.

use std::fmt;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use schemars::JsonSchema;
use serde::Serialize;
use tributary_engine::{Error, ProcessFailure, spoilt};
use tributary_protocol::exit;

use crate::help;

/// A failure with an exit code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Coded {
    /// The exit code.
    pub exit_code: u8,
    /// Description of the failure, in one line.
    pub reason: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Coded {}

/// An error of bad usage.
pub fn usage(what: impl Into<String>) -> anyhow::Error {
    Error::Usage(what.into()).into()
}

/// An error of configuration: something in the way the program was started or built does not fit.
pub fn configuration(what: impl Into<String>) -> anyhow::Error {
    Error::Configuration(what.into()).into()
}

/// A file or folder that cannot be written.
pub fn unwritable(path: &Path, error: &std::io::Error) -> anyhow::Error {
    Coded { exit_code: exit::DISK, reason: format!("{}: {error}", path.display()) }.into()
}

/// Refusal of clap, in one line.
pub fn usage_line(error: &clap::Error) -> String {
    if let (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
        && let Some(instead) = help::instead_of(flag)
    {
        return format!("{flag}: {instead}");
    }
    let text = error.to_string();
    let useful = |line: &&str| !line.is_empty() && !line.starts_with("Usage:") && !line.starts_with("For more");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(useful).collect();
    lines.join(" ").replace(" tip: ", "; tip: ").trim_start_matches("error: ").to_owned()
}

/// A failure, with an explanation if it has poisoned one of these devices.
pub fn explained<'a>(
    error: anyhow::Error,
    devices: impl IntoIterator<Item = &'a candle_core::Device>,
) -> anyhow::Error {
    if matches!(error.downcast_ref(), Some(Error::Spoilt { .. })) {
        return error;
    }
    spoilt(error.as_ref(), devices).map_or(error, Into::into)
}

/// The exit code of a failure: 64 usage, 65 integrity, 69 rank lost, 70 a bug, 71 out of memory, 74
/// disk, 75 deadline, 76 version skew, 78 configuration.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<Error>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<tributary_study::Error>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<tributary_quality::Error>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<tributary_coordinator::Error>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<tributary_planner::Error>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<Coded>() {
        return error.exit_code;
    }
    if let Some(error) = error.downcast_ref::<tributary_comm::Error>() {
        return error.exit_code();
    }
    if error.downcast_ref::<std::io::Error>().is_some() {
        return exit::DISK;
    }
    exit::BUG
}

/// The failure in one line, causes included.
pub fn one_line(error: &anyhow::Error) -> String {
    tributary_engine::one_line(error.as_ref())
}

/// The failure as it ends this process: a table of the ranks' disagreements keeps its lines.
pub fn ending(error: &anyhow::Error) -> ProcessFailure {
    use tributary_comm::Error::Aborted;
    let own = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(tributary_study::Error::Engine(error)), _) => Some(error),
        (_, Some(tributary_quality::Error::Engine(error))) => Some(error),
        _ => error.downcast_ref::<Error>(),
    };
    let line = match own {
        Some(Error::Disagreement(table)) => table.to_string(),
        _ => one_line(error),
    };
    let is_told_elsewhere = [
        own.is_some_and(Error::is_told_elsewhere),
        matches!(error.downcast_ref(), Some(Aborted { .. })),
        error.downcast_ref().is_some_and(tributary_quality::Error::is_told_elsewhere),
    ];
    ProcessFailure { line, exit_code: exit_code(error), is_told_elsewhere: is_told_elsewhere.contains(&true) }
}
