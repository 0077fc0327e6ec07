//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::error::{Error, Result};

/// Writes beside the name, makes sure that it is on the disk, then renames: the file is the old one or the new one, whenever
/// the process ends.
///
/// # Errors
/// The system's, with the path.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_file_name(format!(".{}.part", path.file_name().unwrap_or_default().to_string_lossy()));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        File::open(parent(path))?.sync_all()
    };
    let written = write();
    if written.is_err() {
        // Whatever the cause, no part of a file stays behind; that this fails too changes nothing.
        let _ = fs::remove_file(&part);
    }
    written.map_err(Error::file("cannot write", path))
}

/// The folder that a file is in.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
