//! Disks of a test's own: full ones, and those that take no writes.

use std::process::{Command, Output};

use super::skipped;

/// Runs a shell line in a separate mount namespace; none where this machine does not allow that.
pub fn in_own_mounts(line: &str) -> Option<Output> {
    let allowed = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if !allowed {
        skipped("mounts of its own, which root may have");
        return None;
    }
    Some(Command::new("unshare").args(["-m", "sh", "-euc", line]).output().expect("it runs"))
}

/// Words as a shell reads them.
pub fn quoted<W: std::fmt::Display>(words: &[W]) -> String {
    let program = env!("CARGO_BIN_EXE_tributary").to_owned();
    let words = words.iter().map(ToString::to_string);
    std::iter::once(program).chain(words).map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
}
