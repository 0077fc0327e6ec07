//! The store of this process's chunk caches: its configuration, and its opening.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tributary_store::{Folder, OpenError, Secret, Settings, Store};

use crate::error::{Error, Result};

/// Configuration of the store of chunks that outlive the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkStoreConfig {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// The most bytes of files; no limit where absent.
    pub most_bytes: Option<u64>,
    /// Bytes of the disk that stay free.
    pub reserve_bytes: u64,
    /// Whether it is meant that others may write to it.
    pub is_shared: bool,
    /// A file with the shared secret of all who may write trusted chunks.
    pub key_file: Option<PathBuf>,
    /// The URL of an object store behind the folder.
    pub remote: Option<String>,
}

impl ChunkStoreConfig {
    /// The secret, if there is one.
    ///
    /// # Errors
    /// Returns an error if the file is empty or cannot be read.
    pub fn secret(&self) -> Result<Option<Secret>> {
        self.key_file.as_deref().map(secret).transpose()
    }

    /// Opens the folder alone, for upkeep; it must be there.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does.
    pub fn look_into(&self) -> Result<(Folder, Option<Secret>)> {
        let refused = |cause| refused(OpenError { path: self.folder.clone(), cause });
        if !self.folder.is_dir() {
            return Err(refused(io::ErrorKind::NotFound.into()));
        }
        Ok((Folder::open(&self.folder, self.is_shared).map_err(refused)?, self.secret()?))
    }

    /// Opens the store.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails, if other users may write to
    /// the folder unless that is allowed, or if the secret cannot be read.
    pub fn open(&self) -> Result<Arc<Store>> {
        let settings = Settings {
            folder: self.folder.clone(),
            is_shared: self.is_shared,
            most_bytes: self.most_bytes,
            reserve_bytes: self.reserve_bytes,
            secret: self.secret()?,
            remote: self.remote.clone(),
        };
        Store::open(settings).map(Arc::new).map_err(refused)
    }
}

fn secret(path: &Path) -> Result<Secret> {
    let told = |cause: &dyn std::fmt::Display| {
        Error::configuration(format!("--chunk-store-key-file {}: {cause}", path.display()))
    };
    let text = std::fs::read(path).map_err(|error| told(&error))?;
    match text.trim_ascii() {
        [] => Err(told(&"the file is empty")),
        text => Ok(Secret::new(text)),
    }
}

/// A folder that others may write to is a matter of configuration; all else is the disk's.
fn refused(OpenError { path, cause }: OpenError) -> Error {
    let folder = path.display();
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            Error::configuration(format!("--chunk-store {folder}: {cause}; --chunk-store-shared says that it is meant"))
        }
        io::ErrorKind::InvalidInput => Error::configuration(format!("--chunk-store-remote: {cause}")),
        kind => Error::Io(io::Error::new(kind, format!("--chunk-store {folder}: {cause}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn config(folder: &Path) -> ChunkStoreConfig {
        ChunkStoreConfig {
            folder: folder.to_owned(),
            most_bytes: None,
            reserve_bytes: 0,
            is_shared: false,
            key_file: None,
            remote: None,
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_in_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("open to all");
        let error = config(folder.path()).open().expect_err("anybody may write");
        assert_eq!(error.exit_code(), 78);
        assert!(error.to_string().ends_with("(mode 777); --chunk-store-shared says that it is meant"), "{error}");
        let meant = ChunkStoreConfig { is_shared: true, ..config(folder.path()) };
        assert!(meant.open().is_ok());
        let file = folder.path().join("file");
        fs::write(&file, " \n").expect("written");
        let error = config(&file).open().expect_err("no folder");
        assert_eq!(error.exit_code(), 74, "{error}");
        let keyed = ChunkStoreConfig { key_file: Some(file), ..meant };
        let error = keyed.open().expect_err("an empty file");
        assert_eq!((error.exit_code(), error.to_string().ends_with("the file is empty")), (78, true), "{error}");
    }
}
