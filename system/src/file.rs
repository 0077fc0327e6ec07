//! Text of small files, and files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// A file's text without the space around it.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Opens a regular file for reading, without waiting: a FIFO, a device or a folder is an error.
/// Links to regular files are followed.
///
/// # Errors
/// Returns an error if an operation of the operating system fails; its kind is `InvalidInput` for a
/// file that is not regular.
pub fn open_regular(path: &Path) -> io::Result<fs::File> {
    // A FIFO without a writer would block the open itself.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// The bytes of a regular file, `most_bytes` at most.
///
/// # Errors
/// Fails as [`open_regular`] does; the kind is `InvalidData` for a longer file.
pub fn regular_bytes(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {most_bytes} bytes")));
    }
    Ok(bytes)
}

/// The text of a regular file from another source, `most_bytes` at most, without a byte order mark.
///
/// # Errors
/// Fails as [`regular_bytes`] does; the kind is `InvalidData` for a text that is not UTF-8, or for
/// a Git LFS pointer in place of the file.
pub fn regular_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    let bytes = regular_bytes(path, most_bytes)?;
    if is_lfs_pointer(&bytes) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, LFS_POINTER));
    }
    Ok(without_mark(utf8(bytes)?))
}

/// Bytes as text.
///
/// # Errors
/// Returns an error of the kind `InvalidData` that names the first byte that is not UTF-8.
pub fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("byte {place} is not UTF-8 text"))
    })
}

/// A file's text without the byte order mark that it may begin with.
pub fn without_mark(text: String) -> String {
    text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)
}

/// Message about a Git LFS pointer.
pub const LFS_POINTER: &str = "it is a Git LFS pointer, not the file itself: `git lfs pull` fetches it";

/// Whether bytes are a Git LFS pointer, which replaces a file that was not fetched.
pub fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(b"version https://git-lfs.github.com/spec/")
}

/// Writes to another name, syncs the bytes to the disk, then renames, and syncs the folder too: the
/// file is the old one or the new one, whenever the process or the machine stops. Several
/// processes, on several hosts too, may write the same file at the same time; the last one wins.
///
/// # Errors
/// Returns an error if an operation of the operating system fails. No part of the file remains.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = part_of(path);
    let write = || -> io::Result<()> {
        let mut file = File::create_new(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        File::open(parent(path))?.sync_all()
    };
    let written = write();
    if written.is_err() {
        // A second failure changes nothing.
        let _ = fs::remove_file(&part);
    }
    written
}

/// The folder that a file is in.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A hidden name in a file's folder that no other writer has: hosts that share a folder may have
/// processes of the same number.
fn part_of(path: &Path) -> PathBuf {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (pid, count) = (std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
    path.with_file_name(format!(".{name}.part-{pid}-{count}-{}", since_1970.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_whoever_writes_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        write_whole(&path, b"old").unwrap();
        assert_eq!(text(&path).as_deref(), Some("old"));
        std::thread::scope(|scope| {
            for letter in b'a'..b'i' {
                let path = &path;
                scope.spawn(move || write_whole(path, &[letter; 100_000]).unwrap());
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 100_000);
        assert!((b'a'..b'i').contains(&bytes[0]) && bytes.iter().all(|&byte| byte == bytes[0]), "one writer's bytes");
        assert_eq!(names(folder.path()), ["report.json"], "no part is left");
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::create_dir_all(taken.join("inside")).unwrap();
        assert!(write_whole(&taken, b"new").is_err(), "a folder is there");
        assert_eq!(names(folder.path()), ["taken"]);
        let error = write_whole(&folder.path().join("absent/file"), b"new").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn every_file_is_in_a_folder() {
        assert_eq!(parent(Path::new("file")), Path::new("."));
        assert_eq!(parent(Path::new("/a/file")), Path::new("/a"));
    }
}
