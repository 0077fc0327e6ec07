//! What tells one model from another: a hash of everything that shapes its results.

use std::path::Path;

use blake3::Hasher;

use crate::error::{Error, Result};
use crate::model::{LoadFormat, weight_files};

/// 256-bit BLAKE3 hash of a model: config.json and the contents of its weight files in the order of their names, or the
/// seed that stands in for them. Runs on the thread pool it is called in.
///
/// # Errors
/// A file that cannot be read.
pub fn fingerprint(folder: &Path, format: LoadFormat) -> Result<[u8; 32]> {
    let mut hasher = Hasher::new();
    let mut paths = vec![folder.join("config.json")];
    match format {
        LoadFormat::Safetensors => paths.extend(weight_files(folder)?),
        LoadFormat::Dummy { seed } => {
            hasher.update(b"dummy");
            hasher.update(&seed.to_le_bytes());
        }
    }
    for path in paths {
        let failed = |error: std::io::Error| Error::File { path: path.clone(), cause: error.to_string() };
        // Name and length first, so that no two lists of files are one sequence of bytes.
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let length = std::fs::metadata(&path).map_err(failed)?.len();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(&length.to_le_bytes());
        hasher.update_mmap_rayon(&path).map_err(failed)?;
    }
    Ok(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_config_and_weights_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        let hash = || fingerprint(folder.path(), LoadFormat::Safetensors).expect("readable");
        write("config.json", "{}");
        write("model.safetensors", "weights");
        let first = hash();
        assert_eq!(hash(), first);
        write("tokenizer.json", "not the model's numbers");
        assert_eq!(hash(), first);
        write("model.safetensors", "weightz");
        let second = hash();
        assert_ne!(second, first);
        write("config.json", "{ }");
        assert_ne!(hash(), second);
    }

    #[test]
    fn seeds_are_models_of_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.json"), "{}").expect("written");
        let hash = |seed| fingerprint(folder.path(), LoadFormat::Dummy { seed }).expect("readable");
        assert_eq!(hash(3), hash(3));
        assert_ne!(hash(3), hash(4));
    }

    #[test]
    fn a_missing_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = fingerprint(folder.path(), LoadFormat::Dummy { seed: 0 }).unwrap_err();
        assert!(error.to_string().contains("config.json"), "{error}");
    }
}
