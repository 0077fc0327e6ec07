//! A GGUF file as a model folder: config.json, tokenizer.json and tokenizer_config.json, made of
//! its metadata, beside a link to the file. They are kept in the user's cache.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::file::{Gguf, parts};
use super::tokenizer::Files;
use super::{facts, tokenizer};
use crate::error::{Error, Result};

/// The name of a model folder's GGUF file.
pub const FILE: &str = "model.gguf";

/// The files that describe it.
const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

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
    if is_whole(&folder) {
        return Ok(folder);
    }
    let opened = Gguf::open(&file)?;
    let bad = |what: String| Error::Config { path: file.clone(), what };
    let texts = Texts {
        config: facts::config(&opened).map_err(bad)?.to_string(),
        tokenizer: tokenizer::files(&opened).map_err(bad)?,
    };
    match texts.write(&file, &folder) {
        Ok(()) => Ok(folder),
        // Another process of this model was faster.
        Err(_) if is_whole(&folder) => Ok(folder),
        Err(cause) => Err(Error::Write { path: folder, cause }),
    }
}

/// Whether all that describes a file is in a folder.
fn is_whole(folder: &Path) -> bool {
    [CONFIG, TOKENIZER, TOKENIZER_CONFIG, FILE].iter().all(|name| folder.join(name).exists())
}

/// What a description says.
struct Texts {
    config: String,
    tokenizer: Files,
}

impl Texts {
    /// Writes the folder of a file, under another name first; one that is damaged is replaced.
    fn write(&self, file: &Path, folder: &Path) -> std::io::Result<()> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let new = folder.with_extension(format!("{}-{number}.new", std::process::id()));
        std::fs::create_dir_all(&new)?;
        let written = self.fill(file, &new).and_then(|()| {
            if folder.exists() && !is_whole(folder) {
                std::fs::remove_dir_all(folder)?;
            }
            std::fs::rename(&new, folder)
        });
        if written.is_err() {
            _ = std::fs::remove_dir_all(&new);
        }
        written
    }

    fn fill(&self, file: &Path, folder: &Path) -> std::io::Result<()> {
        std::fs::write(folder.join(CONFIG), &self.config)?;
        std::fs::write(folder.join(TOKENIZER), self.tokenizer.tokenizer.to_string())?;
        std::fs::write(folder.join(TOKENIZER_CONFIG), self.tokenizer.config.to_string())?;
        std::os::unix::fs::symlink(file, folder.join(FILE))
    }
}

/// A name for a file, and for the further parts of a model that is split, as they are now.
fn stamp(file: &Path) -> Result<String> {
    use std::os::unix::fs::MetadataExt;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&VERSION.to_le_bytes());
    for part in parts(file).iter().filter(|part| part.exists()) {
        let unread = |error: std::io::Error| Error::File { path: part.clone(), cause: error.to_string() };
        let found = std::fs::metadata(part).map_err(unread)?;
        hasher.update(part.as_os_str().as_encoded_bytes());
        for number in [found.len(), found.mtime().cast_unsigned(), found.mtime_nsec().cast_unsigned(), found.ino()] {
            hasher.update(&number.to_le_bytes());
        }
    }
    Ok(hasher.finalize().to_hex()[..24].to_owned())
}
