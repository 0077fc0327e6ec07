//! Untrained adapters.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use tempfile::TempDir;
use tributary_model::{
    Adapter, AdapterConfig, AdapterFolder, AdapterKind, Config, Linear, LoadFormat, LowRank, LowRankPair, fingerprint,
};

/// Rows around chunks for a model folder: two before and one after, numbers from -`spread` to
/// `spread`.
pub fn packet(model: &Path, spread: f32) -> TempDir {
    let config = Config::read(model).expect("a config");
    let embeddings = numbers((3, config.hidden), spread);
    written(model, &config, AdapterKind::KvPacket { head: 2, tail: 1 }, &Adapter::from(embeddings))
}

/// Four rows that look ahead, with low-rank matrices of rank 2.
pub fn look_ahead(model: &Path) -> TempDir {
    let config = Config::read(model).expect("a config");
    let pair = |(layer, linear): (usize, Linear)| {
        let (out, input) = linear.shape(&config);
        ((layer, linear), LowRankPair { a: numbers((2, input), 0.1), b: numbers((out, 2), 0.1), scale: 4.0 })
    };
    let places = (0..config.layers).flat_map(|layer| Linear::ALL.map(|linear| (layer, linear)));
    let low_rank = Some(Arc::new(LowRank::new(places.map(pair)).expect("ranks fit")));
    let adapter = Adapter { embeddings: numbers((4, config.hidden), 0.5), low_rank };
    written(model, &config, AdapterKind::Lookahead { rows: 4, rank: 2, alpha: 8.0 }, &adapter)
}

/// Numbers from -`spread` to `spread`.
fn numbers(shape: (usize, usize), spread: f32) -> Tensor {
    let number = |i: usize| spread * ((i * 37 % 101) as f32 / 50.0 - 1.0);
    let numbers: Vec<f32> = (0..shape.0 * shape.1).map(number).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).expect("numbers")
}

fn written(model: &Path, config: &Config, kind: AdapterKind, adapter: &Adapter) -> TempDir {
    let hash = fingerprint(model, LoadFormat::Safetensors, None).expect("a hash").hash;
    let folder = tempfile::tempdir().expect("a folder");
    let about = AdapterConfig::new(kind, hash, config, serde_json::Value::Null);
    AdapterFolder::write(folder.path(), &about, adapter).expect("written");
    folder
}
