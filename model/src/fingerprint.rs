//! The fingerprint of a model: a hash of everything that determines its results.

mod known_hashes;
#[cfg(test)]
mod tests;

use std::path::Path;

use blake3::Hasher;

use self::known_hashes::{FileStamp, KnownHashes};
use crate::LoadFormat;
use crate::config::{self, Config};
use crate::error::{Error, Result};
use crate::families;
use crate::vision_config::VisionConfig;
use crate::weights::weight_files;

/// A model's hash, and the number of bytes read for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// 256-bit BLAKE3 hash of config.json and of the contents of the weight files in the order of
    /// their names, or of the seed in their place; of a model that reads pictures also of what
    /// makes numbers of their pixels.
    pub hash: [u8; 32],
    /// Bytes of the weight files that were read; the hashes of the others came from the cache.
    pub weight_bytes_read: u64,
}

/// The fingerprint of a model folder. Runs on the thread pool it is called in. Hashes of weight
/// files are remembered in the folder `cache`, if one is given; a cache that is damaged or cannot
/// be written is not used.
///
/// # Errors
/// Returns an error if a file of the model cannot be read.
pub fn fingerprint(folder: &Path, format: LoadFormat, cache: Option<&Path>) -> Result<Fingerprint> {
    let mut hasher = Hasher::new();
    let mut weight_bytes_read = 0;
    add(&mut hasher, &folder.join("config.json"), content_hash)?;
    if let Some(vision) = vision_of(folder)? {
        add_vision(&mut hasher, &vision);
    }
    match format {
        LoadFormat::Safetensors => {
            let mut known = cache.and_then(|cache| KnownHashes::read(cache, folder));
            for path in weight_files(folder)? {
                add(&mut hasher, &path, |path| {
                    let before = FileStamp::of(path)?;
                    if let Some(hash) = known.as_ref().and_then(|known| known.hash_of(path, &before)) {
                        return Ok(hash);
                    }
                    let hash = content_hash(path)?;
                    weight_bytes_read += before.bytes;
                    if let Some(known) = &mut known
                        && FileStamp::of(path)? == before
                    {
                        known.remember(path, before, hash);
                    }
                    Ok(hash)
                })?;
            }
            if let Some(known) = known {
                known.write();
            }
        }
        LoadFormat::Dummy { seed } => {
            hasher.update(b"dummy");
            hasher.update(&seed.to_le_bytes());
        }
    }
    tracing::debug!(weight_bytes_read, "the model is hashed");
    Ok(Fingerprint { hash: *hasher.finalize().as_bytes(), weight_bytes_read })
}

/// The tower of a model folder, if its config names a family whose pictures are read. Configs of
/// other models are not looked at.
fn vision_of(folder: &Path) -> Result<Option<VisionConfig>> {
    let value = serde_json::from_str::<serde_json::Value>(&config::read(&folder.join("config.json"))?);
    let architecture = value.as_ref().ok().and_then(|value| value["architectures"][0].as_str());
    match architecture.is_some_and(|name| families::with_tower(name).is_some()) {
        true => Ok(Config::read(folder)?.vision),
        false => Ok(None),
    }
}

/// Adds what makes rows of a picture's pixels. The limits of a picture's size are not among it:
/// they shape the pixels, which are hashed themselves.
fn add_vision(hasher: &mut Hasher, vision: &VisionConfig) {
    let VisionConfig { patch, merge, frames, preprocessing, .. } = vision;
    hasher.update(b"pictures");
    for size in [patch, merge, frames] {
        hasher.update(&(*size as u64).to_le_bytes());
    }
    for number in preprocessing.mean.iter().chain(&preprocessing.std) {
        hasher.update(&number.to_le_bytes());
    }
}

/// Adds a file: its name, its length and the hash of its content. Different lists of files thus
/// give different sequences of bytes.
fn add(hasher: &mut Hasher, path: &Path, hash_of: impl FnOnce(&Path) -> std::io::Result<[u8; 32]>) -> Result<()> {
    let failed = |error: std::io::Error| Error::File { path: path.to_owned(), cause: error.to_string() };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let length = std::fs::metadata(path).map_err(failed)?.len();
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher.update(&length.to_le_bytes());
    hasher.update(&hash_of(path).map_err(failed)?);
    Ok(())
}

fn content_hash(path: &Path) -> std::io::Result<[u8; 32]> {
    Ok(*Hasher::new().update_mmap_rayon(path)?.finalize().as_bytes())
}
