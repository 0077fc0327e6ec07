//! An adapter as a folder: `adapter.json` has its kind and the hash of its base model,
//! `adapter.safetensors` its tensors.
//!
//! Tensors, all f32: `embeddings` `[rows, hidden]`; and, if there are low-rank matrices,
//! `layers.L.P.a` `[rank, in]` and `layers.L.P.b` `[out, rank]`, where P is `q_proj`, `k_proj`,
//! `v_proj`, `o_proj`, `gate_proj`, `up_proj` or `down_proj`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use super::config::read;
use super::{Adapter, Config, Linear, LowRank, LowRankPair};
use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// Version of the folder's format.
const FORMAT: u32 = 1;

/// Maximum number of rows of an adapter.
const ROWS: u32 = 1 << 16;

/// Maximum factor α / rank of the low-rank matrices' products: published adapters have 1 or 2.
const FACTOR: f64 = 64.0;

/// Maximum size of an adapter's tensors, in bytes.
const TENSOR_BYTES: u64 = 16 << 30;

/// The method that an adapter serves, with its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AdapterKind {
    /// Rows around every chunk (KV Packet).
    KvPacket {
        /// Number of rows before a chunk's tokens: the adapter's first ones.
        head: u32,
        /// Number of rows after them: the next ones.
        tail: u32,
    },
    /// Rows after the prompt, with low-rank matrices that are active on them alone (LookaheadKV).
    Lookahead {
        /// Number of rows.
        rows: u32,
        /// Rank of the matrices.
        rank: u32,
        /// α: the matrices' products have the factor α / rank.
        alpha: f64,
    },
}

/// `adapter.json`: an adapter's kind and its base model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterConfig {
    /// Version of the folder's format, 1.
    pub format: u32,
    /// Method and sizes.
    pub kind: AdapterKind,
    /// The hash of the base model's config and weights, 64 hexadecimal digits.
    pub base_model: String,
    /// Width of the base model's rows.
    pub hidden: usize,
    /// Number of the base model's layers.
    pub layers: usize,
    /// Settings of its training, for readers: the program ignores them.
    #[serde(default)]
    pub training: serde_json::Value,
}

/// An adapter that was read from a folder.
#[derive(Debug, Clone)]
pub struct AdapterFolder {
    /// The folder.
    pub path: PathBuf,
    /// Its config.
    pub config: AdapterConfig,
    /// Its number in plans and in the names of cached chunks: the first 64 bits of a BLAKE3 hash of
    /// its kind and of `adapter.safetensors`.
    pub number: u64,
    /// Its tensors, f32 on the host.
    pub adapter: Adapter,
}

impl AdapterKind {
    /// Number of its rows in a prompt.
    pub fn rows(self) -> u32 {
        match self {
            AdapterKind::KvPacket { head, tail } => head.saturating_add(tail),
            AdapterKind::Lookahead { rows, .. } => rows,
        }
    }

    /// Rejects numbers that no adapter can have.
    fn check(self, model: &Config) -> std::result::Result<(), String> {
        let rows = self.rows();
        if rows == 0 {
            return Err("the adapter has no rows".to_owned());
        }
        if rows > ROWS {
            return Err(format!("the adapter has {rows} rows or more; the maximum is {ROWS}"));
        }
        let AdapterKind::Lookahead { rank, alpha, .. } = self else { return Ok(()) };
        if rank as usize > model.hidden {
            return Err(format!("rank {rank}: low-rank matrices of rows of {} have at most that rank", model.hidden));
        }
        if rank > 0 && model.experts.is_some() {
            return Err("the adapter has low-rank matrices; beside experts they are not supported".to_owned());
        }
        let factor = alpha / f64::from(rank.max(1));
        match factor > 0.0 && factor <= FACTOR {
            true => Ok(()),
            false => Err(format!("alpha {alpha} of rank {rank}: alpha / rank must be above 0 and at most {FACTOR}")),
        }
    }

    /// Name of its method on the command line.
    pub fn name(self) -> &'static str {
        match self {
            AdapterKind::KvPacket { .. } => "kv-packet",
            AdapterKind::Lookahead { .. } => "lookahead",
        }
    }

    /// Rank and factor of its low-rank matrices, if it has any.
    fn low_rank(self) -> Option<(usize, f64)> {
        match self {
            AdapterKind::KvPacket { .. } => None,
            AdapterKind::Lookahead { rank: 0, .. } => None,
            AdapterKind::Lookahead { rank, alpha, .. } => Some((rank as usize, alpha / f64::from(rank))),
        }
    }
}

impl AdapterConfig {
    /// The config of an adapter for a model of this hash and these sizes.
    pub fn new(kind: AdapterKind, base_model: [u8; 32], model: &Config, training: serde_json::Value) -> Self {
        let base_model = hex(&base_model);
        Self { format: FORMAT, kind, base_model, hidden: model.hidden, layers: model.layers, training }
    }
}

impl AdapterFolder {
    /// Reads a folder and checks it against its model: the sizes, and the hash of the model's
    /// config and weights.
    ///
    /// # Errors
    /// Returns [`Error::File`] if a file cannot be read. Returns [`Error::Config`] if
    /// `adapter.json` is invalid, or is of another version or another model. Returns
    /// [`Error::Weights`], [`Error::MissingTensor`] or [`Error::WrongShape`] if the tensors do not
    /// match it.
    pub fn read(folder: &Path, model: &Config, base_model: [u8; 32]) -> Result<Self> {
        let path = folder.join("adapter.json");
        let bad = |what: String| Error::Config { path: path.clone(), what };
        let config: AdapterConfig = serde_json::from_str(&read(&path)?).map_err(|error| bad(error.to_string()))?;
        if config.format != FORMAT {
            return Err(bad(format!("format {}; this program reads format {FORMAT}", config.format)));
        }
        if (config.hidden, config.layers) != (model.hidden, model.layers) || config.base_model != hex(&base_model) {
            let AdapterConfig { hidden, layers, base_model: other, .. } = &config;
            let sizes =
                format!("{layers} layers of width {hidden}, and this one has {} of {}", model.layers, model.hidden);
            let hashes = format!("{} and {}", short(other), short(&hex(&base_model)));
            return Err(bad(format!("the adapter was learned for another model: one of {sizes}; hashes {hashes}")));
        }
        config.kind.check(model).map_err(bad)?;
        let (number, tensors) = read_tensors(folder, config.kind)?;
        let adapter = adapter_of(folder, config.kind, model, tensors)?;
        Ok(Self { path: folder.to_owned(), config, number, adapter })
    }

    /// Writes a folder, and creates it if it is missing. The tensors are written first and each
    /// file atomically, so that a folder with an `adapter.json` has its tensors.
    ///
    /// # Errors
    /// Returns [`Error::Write`] if the folder cannot be written, as with a full disk. Returns
    /// [`Error::Tensor`] if a candle operation fails.
    pub fn write(folder: &Path, config: &AdapterConfig, adapter: &Adapter) -> Result<()> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| Error::Write { path, cause: error }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let mut tensors = vec![("embeddings".to_owned(), on_host(&adapter.embeddings)?)];
        for (&(layer, linear), LowRankPair { a, b, .. }) in
            adapter.low_rank.iter().flat_map(|low_rank| low_rank.pairs())
        {
            tensors.push((name_of(layer, linear, 'a'), on_host(a)?));
            tensors.push((name_of(layer, linear, 'b'), on_host(b)?));
        }
        let bytes = safetensors::serialize(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)), None);
        let bytes = bytes.map_err(candle_core::Error::from)?;
        let json = serde_json::to_vec_pretty(config).expect("a config is JSON");
        for (name, bytes) in [("adapter.safetensors", bytes), ("adapter.json", json)] {
            let path = folder.join(name);
            tributary_system::file::write_whole(&path, &bytes).map_err(failed(&path))?;
        }
        Ok(())
    }
}

fn on_host(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.detach().to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?)
}

fn hex(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn name_of(layer: usize, linear: Linear, matrix: char) -> String {
    format!("layers.{layer}.{}.{matrix}", linear.name())
}

/// The tensors of a folder, and the adapter's number.
fn read_tensors(folder: &Path, kind: AdapterKind) -> Result<(u64, HashMap<String, Tensor>)> {
    let path = folder.join("adapter.safetensors");
    let bytes = tributary_system::file::regular_bytes(&path, TENSOR_BYTES);
    let bytes = bytes.map_err(|error| Error::File { path: path.clone(), cause: error.to_string() })?;
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu);
    let tensors =
        tensors.map_err(|error| Error::Weights { path, what: format!("not a whole safetensors file: {error}") })?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&serde_json::to_vec(&kind).expect("a kind is JSON"));
    hasher.update(&bytes);
    let first = *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes");
    Ok((u64::from_le_bytes(first), tensors))
}

fn adapter_of(
    folder: &Path,
    kind: AdapterKind,
    model: &Config,
    mut tensors: HashMap<String, Tensor>,
) -> Result<Adapter> {
    let mut take = |name: String, shape: (usize, usize)| {
        let (folder, expected) = (folder.to_owned(), vec![shape.0, shape.1]);
        match tensors.remove(&name) {
            None => Err(Error::MissingTensor { folder, name, expected }),
            Some(tensor) if tensor.dims() != expected => {
                Err(Error::WrongShape { folder, name, expected, found: tensor.dims().to_vec() })
            }
            Some(tensor) if tensor.dtype() != DType::F32 => {
                let what = format!("tensor `{name}` is {:?}; an adapter's are F32", tensor.dtype());
                Err(Error::Weights { path: folder.join("adapter.safetensors"), what })
            }
            Some(tensor) => finite(folder, name, tensor),
        }
    };
    let embeddings = take("embeddings".to_owned(), (kind.rows() as usize, model.hidden))?;
    let Some((rank, scale)) = kind.low_rank() else { return Ok(Adapter { embeddings, low_rank: None }) };
    let mut pairs = Vec::new();
    for layer in 0..model.layers {
        for linear in Linear::ALL {
            let (out, input) = linear.shape(model);
            let a = take(name_of(layer, linear, 'a'), (rank, input))?;
            let b = take(name_of(layer, linear, 'b'), (out, rank))?;
            pairs.push(((layer, linear), LowRankPair { a, b, scale }));
        }
    }
    Ok(Adapter { embeddings, low_rank: Some(Arc::new(LowRank::new(pairs)?)) })
}

/// The tensor, if all its numbers are finite.
fn finite(folder: PathBuf, name: String, tensor: Tensor) -> Result<Tensor> {
    let largest = tensor.abs()?.sum_all()?.to_scalar::<f32>()?;
    if largest.is_finite() {
        return Ok(tensor);
    }
    let what = format!("tensor `{name}` holds NaN or infinite values");
    Err(Error::Weights { path: folder.join("adapter.safetensors"), what })
}
