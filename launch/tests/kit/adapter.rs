//! Adapters that nobody has trained.

use std::path::Path;

use candle_core::{Device, Tensor};
use tempfile::TempDir;
use tributary_worker::{Adapter, AdapterConfig, AdapterFolder, AdapterKind, Config, LoadFormat, fingerprint};

/// Rows around chunks for a model folder: two before and one behind, numbers from -`spread` to `spread`.
pub fn packet(model: &Path, spread: f32) -> TempDir {
    let config = Config::read(model).expect("a config");
    let hash = fingerprint(model, LoadFormat::Safetensors, None).expect("a hash").hash;
    let kind = AdapterKind::KvPacket { head: 2, tail: 1 };
    let number = |i: usize| spread * ((i * 37 % 101) as f32 / 50.0 - 1.0);
    let numbers: Vec<f32> = (0..3 * config.hidden).map(number).collect();
    let embeddings = Tensor::from_vec(numbers, (3, config.hidden), &Device::Cpu).expect("numbers");
    let folder = tempfile::tempdir().expect("a folder");
    let about = AdapterConfig::new(kind, hash, &config, serde_json::Value::Null);
    AdapterFolder::write(folder.path(), &about, &Adapter::from(embeddings)).expect("written");
    folder
}
