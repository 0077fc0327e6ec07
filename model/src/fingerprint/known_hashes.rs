//! Hashes of weight files from earlier starts, so that an unchanged file is not read again for its
//! hash.
//!
//! A model folder has a file of its own in the cache. Ranks that start together write the same
//! content, each of them a whole file. A failure here does not fail a start: a file whose entry
//! cannot be read or written is hashed again the next time.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tributary_system::file::write_whole;

/// Minimum age of a file that is remembered. A younger file may be written again within the
/// resolution of its file system's clock, and its times would not change.
const SETTLED: Duration = Duration::from_secs(2);

/// The properties of a file that change when its content does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileStamp {
    /// Its length.
    pub bytes: u64,
    inode: u64,
    /// Time of the content's last change, in seconds and nanoseconds since 1970. A copy can be
    /// given its original's time.
    modified: (i64, i64),
    /// Time of the file's last change of any kind. No program can set it.
    changed: (i64, i64),
}

impl FileStamp {
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let file = fs::metadata(path)?;
        Ok(Self {
            bytes: file.len(),
            inode: file.ino(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }

    fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.modified.0 < now.saturating_sub(SETTLED).as_secs() as i64
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    stamp: FileStamp,
    hash: [u8; 32],
}

/// Hashes of a model folder's weight files.
pub(super) struct KnownHashes {
    /// The file that holds them.
    file: PathBuf,
    /// Entries by the path of each file, with links resolved.
    entries: BTreeMap<PathBuf, Entry>,
    is_new: bool,
}

impl KnownHashes {
    /// The hashes that `cache` has of a model folder; none for a folder that is not there.
    pub fn read(cache: &Path, folder: &Path) -> Option<Self> {
        let folder = fs::canonicalize(folder).ok()?;
        let name = blake3::hash(folder.as_os_str().as_encoded_bytes()).to_hex();
        let file = cache.join(format!("weights-{}.json", &name[..16]));
        let entries = fs::read_to_string(&file).ok().and_then(|text| parse(&text)).unwrap_or_default();
        Some(Self { file, entries, is_new: false })
    }

    /// The hash of a file that has not changed since.
    pub fn hash_of(&self, path: &Path, stamp: &FileStamp) -> Option<[u8; 32]> {
        let entry = self.entries.get(&fs::canonicalize(path).ok()?)?;
        (entry.stamp == *stamp).then_some(entry.hash)
    }

    pub fn remember(&mut self, path: &Path, stamp: FileStamp, hash: [u8; 32]) {
        if let (true, Ok(path)) = (stamp.is_settled(), fs::canonicalize(path)) {
            self.entries.insert(path, Entry { stamp, hash });
            self.is_new = true;
        }
    }

    /// Writes the hashes to the cache, if one of them is new.
    pub fn write(self) {
        if !self.is_new {
            return;
        }
        if let Err(error) = self.replace() {
            tracing::debug!("the weights' hashes are not remembered in {}: {error}", self.file.display());
        }
    }

    fn replace(&self) -> std::io::Result<()> {
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        write_whole(&self.file, text_of(&self.entries)?.as_bytes())
    }
}

/// A line with the hash of the rest, so that damage shows, and the entries as JSON.
fn text_of(entries: &BTreeMap<PathBuf, Entry>) -> std::io::Result<String> {
    let entries: Vec<_> = entries.iter().collect();
    let entries = serde_json::to_string(&entries)?;
    Ok(format!("{}\n{entries}", blake3::hash(entries.as_bytes()).to_hex()))
}

fn parse(text: &str) -> Option<BTreeMap<PathBuf, Entry>> {
    let (hash, entries) = text.split_once('\n')?;
    if blake3::hash(entries.as_bytes()).to_hex().as_str() != hash {
        return None;
    }
    let entries: Vec<(PathBuf, Entry)> = serde_json::from_str(entries).ok()?;
    Some(entries.into_iter().collect())
}
