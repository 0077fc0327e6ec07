//! Standard output. A reader that has gone has not read the answer: that is an error with an exit
//! code.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use tributary_protocol::exit;

use crate::failure::Coded;

/// Whether the program began without standard output (`>&-`). Rust puts `/dev/null` in its place
/// before `main`, where output is lost without an error; code that runs earlier sets this flag.
pub static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Prints text unchanged.
///
/// # Errors
/// Returns an error if an operation of the operating system fails.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    all_of(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Whether all output was written; a closed standard output is a failure.
///
/// # Errors
/// Returns an error if an operation of the operating system fails.
pub fn all_of(written: std::io::Result<()>) -> anyhow::Result<()> {
    let written = if WAS_CLOSED.load(Ordering::Relaxed) { Err(std::io::Error::other("it is closed")) } else { written };
    let reason = |error| format!("standard output: {error}; not all of it was written");
    written.map_err(|error| Coded { exit_code: exit::DISK, reason: reason(error) }.into())
}

/// Prints an object as JSON.
///
/// # Errors
/// Fails as [`print()`] does.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
