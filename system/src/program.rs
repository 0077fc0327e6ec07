//! The program that this process runs.

use std::sync::OnceLock;

static REVISION: OnceLock<&'static str> = OnceLock::new();

/// Says which commit the program was built from. Only the command itself knows: no crate below it
/// is built anew for a commit.
pub fn built_from(revision: &'static str) {
    // A second word would be the same: there is one program.
    let _ = REVISION.set(revision);
}

/// The commit that the program was built from, followed by `-dirty` if its sources differed from
/// that; nothing where that is not known.
pub fn revision() -> Option<&'static str> {
    REVISION.get().copied()
}
