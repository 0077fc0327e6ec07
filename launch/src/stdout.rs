//! Standard output. A reader that has gone has not read the answer: that is an error, and the exit code says so.

use std::io::Write;

use tributary_protocol::exit;

use crate::failure::Coded;

/// Prints text as it is.
///
/// # Errors
/// The system's.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let reason = |error| format!("standard output: {error}; not all of it was written");
    written.map_err(|error| Coded { exit_code: exit::DISK, reason: reason(error) }.into())
}

/// Prints an object as JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
