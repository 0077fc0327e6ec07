//! A folder of chunks' files. Several processes and hosts may share it: a file is there whole or
//! not at all, even while others write, read and remove files.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use tributary_protocol::ChunkKey;

/// Ending of the files' names.
pub(crate) const ENDING: &str = ".safetensors";

/// Subfolder to which files of no use are moved.
const ASIDE: &str = "damaged";

/// The file that has the folder's name.
const NAME: &str = "name";

/// The name of a file that is being written begins so.
const PART: &str = ".part-";

/// Age after which a half-written file without changes counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Only their owner reads chunks: they reveal the documents.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Whether others than the owner may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A chunk in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: ChunkKey,
    /// Bytes of its file.
    pub bytes: u64,
    /// When it was used last: written or [touched](Folder::touch).
    pub used: SystemTime,
}

/// A folder of chunks.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// Opens a folder, which is made if it is not there. Others who may write to it may put
    /// anything in a chunk's place: that must be meant (`is_shared`).
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails. Returns
    /// [`io::ErrorKind::PermissionDenied`] for a folder that others may write to.
    pub fn open(path: &Path, is_shared: bool) -> io::Result<Self> {
        let folder = Self(path.to_owned());
        folder.make()?;
        let metadata = fs::metadata(path)?;
        let (mode, owner, user) = (metadata.mode(), metadata.uid(), rustix::process::geteuid().as_raw());
        let foreign = if mode & WRITABLE_BY_OTHERS != 0 {
            Some(format!("others may write to this folder (mode {:o})", mode & 0o7777))
        } else if owner != user && owner != 0 {
            Some(format!("this folder belongs to another user ({owner})"))
        } else {
            None
        };
        if let Some(message) = foreign.filter(|_| !is_shared) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            if !is_of_a_store(&name.to_string_lossy()) {
                let message =
                    format!("this folder is neither empty nor a store of chunks: `{}` is in it", name.display());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        Ok(folder)
    }

    /// Makes the folder, if it is not there.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.0)
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of a key's chunk, which need not exist.
    pub fn path_of(&self, key: &ChunkKey) -> PathBuf {
        let name = key.to_string();
        self.0.join(&name[..2]).join(name + ENDING)
    }

    /// Writes a chunk's file: first under another name and to the disk, then it renames the file
    /// and syncs the folder. Whenever the process or the machine stops, the file is there whole or
    /// not at all. An existing file is replaced.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails. No part of the file remains.
    pub fn write(&self, key: &ChunkKey, bytes: &[u8]) -> io::Result<()> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let path = self.path_of(key);
        let folder = path.parent().expect("it is in a folder");
        fail::fail_point!("store::write::begin");
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Hosts that share a folder may have processes of the same number.
        let (process, count) = (std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
        let part = folder.join(format!("{PART}{process}-{count}-{}", since_1970.as_nanos()));
        let written = write_to(&part, bytes).and_then(|()| {
            fail::fail_point!("store::write::synced");
            fs::rename(&part, &path)?;
            fail::fail_point!("store::write::renamed");
            File::open(folder)?.sync_all()
        });
        fail::fail_point!("store::write::end");
        if written.is_err() {
            // A second failure changes nothing.
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// Notes that a chunk has been used.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn touch(&self, key: &ChunkKey) -> io::Result<()> {
        open_file(&self.path_of(key))?.set_modified(SystemTime::now())
    }

    /// Removes a chunk; one that is gone already is none to remove.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn remove(&self, key: &ChunkKey) -> io::Result<()> {
        unless_gone(fs::remove_file(self.path_of(key)))
    }

    /// Moves a file of no use aside, where it can be examined; the last of a name stays there.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn move_aside(&self, key: &ChunkKey) -> io::Result<()> {
        let aside = self.0.join(ASIDE);
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&aside)?;
        unless_gone(fs::rename(self.path_of(key), aside.join(key.to_string() + ENDING)))
    }

    /// Free bytes on its disk for users other than root.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.0)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Drops a chunk's file from the system's page cache, so that the next reader reads from the
    /// disk.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn drop_pages(&self, key: &ChunkKey) -> io::Result<()> {
        let file = open_file(&self.path_of(key))?;
        Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
    }

    /// The name of this folder that all its readers share, at any mount point: the text of a file
    /// in it, which the first who opens it writes.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails, such as in a folder that may
    /// not be written to and has no name yet.
    pub fn name(&self) -> io::Result<String> {
        let path = self.0.join(NAME);
        if let Some(name) = tributary_system::file::text(&path).filter(|name| !name.is_empty()) {
            return Ok(name);
        }
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seed = format!("{} {} {}", tributary_system::host::name(), std::process::id(), since_1970.as_nanos());
        let (part, name) = (self.0.join(format!("{PART}{seed}")), blake3::hash(seed.as_bytes()).to_hex().to_string());
        write_to(&part, name.as_bytes())?;
        // A link does not replace a name that another process gives at the same time.
        let _ = fs::hard_link(&part, &path);
        fs::remove_file(&part)?;
        tributary_system::file::text(&path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Removes files that were moved aside; how many files there were. In a dry run nothing is
    /// removed.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn remove_damaged(&self, dry_run: bool) -> io::Result<usize> {
        let aside = self.0.join(ASIDE);
        let mut count = 0;
        if aside.is_dir() {
            for file in fs::read_dir(aside)? {
                count += 1;
                if !dry_run {
                    unless_gone(fs::remove_file(file?.path()))?;
                }
            }
        }
        Ok(count)
    }

    /// All its chunks, in no order. Abandoned half-written files are removed.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for folder in fs::read_dir(&self.0)? {
            let folder = folder?;
            // Folders of chunks have names of two digits; other entries are ignored.
            let is_digits = folder.file_name().to_str().is_some_and(|name| name.len() == 2);
            if is_digits && folder.file_type()?.is_dir() {
                let files = match fs::read_dir(folder.path()) {
                    // Another process has removed it meanwhile, or has made it unreadable for
                    // others.
                    Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                        continue;
                    }
                    files => files?,
                };
                for file in files {
                    entries.extend(entry(&file?)?);
                }
            }
        }
        Ok(entries)
    }
}

/// Whether something in a folder has a name that a store gives.
fn is_of_a_store(name: &str) -> bool {
    let is_digits = name.len() == 2 && name.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_digits || name == NAME || name == ASIDE || name.starts_with(PART)
}

/// Opens a chunk's file for reading, without waiting: there may be a FIFO, a device or a link in
/// its place.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file")),
    }
}

fn write_to(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    // A umask takes rights away and gives none: this is for folders whose own rules give some.
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    fail::fail_point!("store::write::created");
    let (half, rest) = bytes.split_at(bytes.len() / 2);
    file.write_all(half)?;
    fail::fail_point!("store::write::half");
    file.write_all(rest)?;
    fail::fail_point!("store::write::written");
    file.sync_all()
}

/// A chunk, if this is the file of one; nothing for one that has gone meanwhile.
fn entry(file: &fs::DirEntry) -> io::Result<Option<Entry>> {
    let name = file.file_name();
    let Some(name) = name.to_str() else { return Ok(None) };
    let Some(metadata) = unless_gone(file.metadata().map(Some))? else { return Ok(None) };
    if name.starts_with(PART) {
        let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
        if age > ABANDONED {
            unless_gone(fs::remove_file(file.path()))?;
        }
        return Ok(None);
    }
    // A FIFO or a link is no chunk, under any name.
    let key = name.strip_suffix(ENDING).filter(|_| metadata.is_file()).and_then(|key| key.parse().ok());
    let used = metadata.modified()?;
    Ok(key.map(|key| Entry { key, bytes: metadata.len(), used }))
}

/// None instead of an error where a file has gone: another process has been quicker.
fn unless_gone<T: Default>(result: io::Result<T>) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        result => result,
    }
}

#[cfg(test)]
mod tests;
