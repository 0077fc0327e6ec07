//! A GGUF file as a model folder: config.json, tokenizer.json and tokenizer_config.json, made of
//! its metadata, beside a link to the file. They are kept in the user's cache.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::file::Gguf;
use super::{facts, tokenizer};
use crate::error::{Error, Result};

/// The name of a model folder's GGUF file.
pub const FILE: &str = "model.gguf";

/// A number for each form of what is written: folders of another one are made anew.
const VERSION: u32 = 1;

/// Whether a path is that of a GGUF file, by its name.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) && !path.is_dir()
}

/// The folder that describes a GGUF file, made below `cache` if it is not there yet.
///
/// # Errors
/// Returns an error if the file is missing, damaged or not supported, or if the folder cannot be
/// written.
pub fn described(file: &Path, cache: &Path) -> Result<PathBuf> {
    let unread = |error: std::io::Error| Error::File { path: file.to_owned(), cause: error.to_string() };
    let file = std::fs::canonicalize(file).map_err(unread)?;
    let folder = cache.join("gguf").join(stamp(&file)?);
    if folder.join(FILE).exists() {
        return Ok(folder);
    }
    let opened = Gguf::open(&file)?;
    let bad = |what: String| Error::Config { path: file.clone(), what };
    let config = facts::config(&opened).map_err(bad)?;
    let files = tokenizer::files(&opened).map_err(bad)?;
    let unwritten = |path: &Path| {
        let path = path.to_owned();
        move |cause: std::io::Error| Error::Write { path, cause }
    };
    let parent = cache.join("gguf");
    std::fs::create_dir_all(&parent).map_err(unwritten(&parent))?;
    let new =
        parent.join(format!("{}.{}.new", folder.file_name().unwrap_or_default().to_string_lossy(), std::process::id()));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&new)?;
        for (name, content) in
            [("config.json", &config), ("tokenizer.json", &files.tokenizer), ("tokenizer_config.json", &files.config)]
        {
            std::fs::write(new.join(name), content.to_string())?;
        }
        match std::os::unix::fs::symlink(&file, new.join(FILE)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => other?,
        }
        std::fs::rename(&new, &folder)
    };
    match write() {
        Ok(()) => Ok(folder),
        // Another process of this model was faster.
        Err(_) if folder.join(FILE).exists() => {
            _ = std::fs::remove_dir_all(&new);
            Ok(folder)
        }
        Err(error) => {
            _ = std::fs::remove_dir_all(&new);
            Err(unwritten(&folder)(error))
        }
    }
}

/// A name for a file as it is now.
fn stamp(file: &Path) -> Result<String> {
    use std::os::unix::fs::MetadataExt;
    let unread = |error: std::io::Error| Error::File { path: file.to_owned(), cause: error.to_string() };
    let found = std::fs::metadata(file).map_err(unread)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&VERSION.to_le_bytes());
    hasher.update(file.as_os_str().as_encoded_bytes());
    for number in [found.len(), found.mtime().cast_unsigned(), found.mtime_nsec().cast_unsigned(), found.ino()] {
        hasher.update(&number.to_le_bytes());
    }
    Ok(hasher.finalize().to_hex()[..24].to_owned())
}
