//! Weights from a Hugging Face folder: one `model.safetensors` or shards with an index, mapped, checked before use.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, Tensor};

use super::config::read;
use super::dummy;
use crate::error::{Error, Result};

/// The longest safetensors header that is read, in bytes.
const HEADER_LIMIT_BYTES: u64 = 16 << 20;

/// Where tensors come from.
pub(super) enum Weights {
    /// Mapped files.
    Files { folder: PathBuf, files: HashMap<PathBuf, MmapedSafetensors>, index: HashMap<String, PathBuf>, dtype: DType },
    /// Seeded random numbers.
    Dummy { seed: u64, dtype: DType },
}

impl Weights {
    /// Opens a model folder's weight files.
    ///
    /// # Errors
    /// No weight file, an unreadable or truncated one, an index that names a missing file.
    pub fn open(folder: &Path, dtype: DType) -> Result<Self> {
        let single = folder.join("model.safetensors");
        let shards = folder.join("model.safetensors.index.json");
        let paths: BTreeSet<PathBuf> = if shards.exists() {
            shard_names(&shards)?.into_iter().map(|name| folder.join(name)).collect()
        } else {
            BTreeSet::from([single])
        };
        let (mut files, mut index) = (HashMap::new(), HashMap::new());
        for path in paths {
            let file = map(&path)?;
            for (name, _) in file.tensors() {
                index.insert(name, path.clone());
            }
            files.insert(path, file);
        }
        Ok(Self::Files { folder: folder.to_owned(), files, index, dtype })
    }

    /// The tensor of that name and shape, in the model's dtype.
    ///
    /// # Errors
    /// It is missing or has another shape.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        match self {
            Weights::Dummy { seed, dtype } => dummy::tensor(*seed, name, shape, *dtype),
            Weights::Files { folder, files, index, dtype } => {
                let Some(path) = index.get(name) else {
                    let (folder, name) = (folder.clone(), name.to_owned());
                    return Err(Error::MissingTensor { folder, name, expected: shape.to_vec() });
                };
                let bad = |error: candle_core::Error| Error::Weights { path: path.clone(), what: error.to_string() };
                let file = &files[path];
                let found = file.get(name).map_err(bad)?.shape().to_vec();
                if found != shape {
                    let (folder, name) = (folder.clone(), name.to_owned());
                    return Err(Error::WrongShape { folder, name, expected: shape.to_vec(), found });
                }
                Ok(file.load(name, &Device::Cpu).map_err(bad)?.to_dtype(*dtype)?)
            }
        }
    }

    /// The tensor of that name and shape in f32: norms are kept so, whatever the model's dtype.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_f32(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(self.get(name, shape)?.to_dtype(DType::F32)?)
    }
}

/// The file names of an index, each checked to be a plain name.
fn shard_names(path: &Path) -> Result<BTreeSet<String>> {
    let bad = |what: String| Error::Weights { path: path.to_owned(), what };
    let index: serde_json::Value = serde_json::from_str(&read(path)?).map_err(|error| bad(error.to_string()))?;
    let map = index["weight_map"].as_object().ok_or_else(|| bad("no `weight_map`".to_owned()))?;
    let names: BTreeSet<String> = map.values().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    match names.iter().find(|name| name.contains(['/', '\\'])) {
        Some(name) => Err(bad(format!("`{name}` is not a file name"))),
        None => Ok(names),
    }
}

fn map(path: &Path) -> Result<MmapedSafetensors> {
    let file_error = |error: std::io::Error| Error::File { path: path.to_owned(), cause: error.to_string() };
    let mut file = std::fs::File::open(path).map_err(file_error)?;
    check_header(path, &mut file)?;
    // SAFETY: the mapping is read while the model loads and dropped after; nobody is expected to change a weight file
    // in these seconds, and a file cut short meanwhile ends the process, it corrupts nothing.
    let mapped = unsafe { MmapedSafetensors::new(path) };
    mapped.map_err(|error| {
        let what = format!("not a whole safetensors file: {error}");
        Error::Weights { path: path.to_owned(), what }
    })
}

/// Refuses a header that is longer than the file or than any sane one, before anything is allocated for it.
fn check_header(path: &Path, file: &mut std::fs::File) -> Result<()> {
    use std::io::Read;
    let file_error = |error: std::io::Error| Error::File { path: path.to_owned(), cause: error.to_string() };
    let file_bytes = file.metadata().map_err(file_error)?.len();
    let mut length = [0; 8];
    let bad = |what: String| Err(Error::Weights { path: path.to_owned(), what });
    if file.read_exact(&mut length).is_err() {
        return bad(format!("truncated: {file_bytes} bytes, a header needs 8"));
    }
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > HEADER_LIMIT_BYTES || header_bytes.saturating_add(8) > file_bytes {
        let limit = HEADER_LIMIT_BYTES.min(file_bytes - 8);
        return bad(format!("header of {header_bytes} bytes; at most {limit} would do: truncated or not safetensors"));
    }
    Ok(())
}
