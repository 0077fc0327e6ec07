//! The kit of the unit tests: a tiny model from a seed, and real inputs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device};

use crate::{LoadFormat, Model, load};

/// A config.json of a tiny Llama.
pub fn config() -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
    })
}

/// The model of a config.json, with random weights.
pub fn model(config: &serde_json::Value) -> Arc<dyn Model> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    load(folder.path(), LoadFormat::Dummy { seed: 5 }, DType::F32, &Device::Cpu).expect("a dummy model")
}

/// A folder of real inputs, which are outside the repository. Without it the test is skipped. The
/// message bypasses the test harness, which hides the output of a passing test.
pub fn real_inputs(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    let _ = writeln!(std::io::stderr(), "skipped: real inputs are not beside the repository: {}", folder.display());
    None
}
