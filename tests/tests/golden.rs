//! Invariant 1 against logits recorded from Hugging Face transformers (`golden/record.py`):
//! features that candle-transformers lacks (YaRN, linear scaling, GLM's own names) and, since one
//! judge can be wrong, those that it has.

mod common;

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use common::last_logits;
use serde_json::{Value, json};
use tempfile::TempDir;
use tributary_model::{LoadFormat, load};
use tributary_tests::{relative_error, root};

const TOLERANCE: f64 = 1e-4;

/// Every recorded model; a folder that is not listed here, or the other way round, fails.
const MODELS: [&str; 12] = [
    "glm",
    "glm4",
    "glm4-yarn",
    "llama-linear",
    "llama-llama3",
    "llama-yarn",
    "llama-yarn-factor",
    "llama-yarn-mscale",
    "mistral",
    "qwen2-yarn",
    "qwen3",
    "qwen3-yarn",
];

fn folder(name: &str) -> PathBuf {
    root().join("tests/golden").join(name)
}

/// A prompt and the logits after some of its prefixes.
struct Expected {
    ids: Vec<u32>,
    lengths: Vec<usize>,
    logits: Vec<Vec<f32>>,
}

fn expected(name: &str) -> Expected {
    let path = folder(name).join("expected.safetensors");
    let tensors = candle_core::safetensors::load(path, &Device::Cpu).expect("a recorded file");
    let integers = |key: &str| -> Vec<i64> { tensors[key].to_vec1().expect("i64") };
    Expected {
        ids: integers("ids").into_iter().map(|id| id as u32).collect(),
        lengths: integers("lengths").into_iter().map(|n| n as usize).collect(),
        logits: tensors["logits"].to_vec2().expect("f32 [lengths, vocab]"),
    }
}

/// Largest relative error over the recorded prefixes, of the model in `model_folder` against the
/// record of `name`.
fn worst_error(model_folder: &Path, name: &str) -> f64 {
    let expected = expected(name);
    assert!(expected.lengths.len() >= 5, "{name}: hardly anything recorded");
    assert_eq!(expected.lengths.len(), expected.logits.len());
    let model = load(model_folder, LoadFormat::Safetensors, DType::F32, &Device::Cpu).expect("a golden model");
    let errors = expected.lengths.iter().zip(&expected.logits);
    errors
        .map(|(&length, logits)| {
            let found = last_logits(&model, &expected.ids[..length]);
            let error = relative_error(&found, logits);
            println!("{name}: {length} tokens, relative error {error:.1e}");
            error
        })
        .fold(0.0, f64::max)
}

fn check(name: &str) {
    let error = worst_error(&folder(name), name);
    assert!(error < TOLERANCE, "{name}: {error:e}");
}

fn config_of(name: &str) -> Value {
    let text = std::fs::read_to_string(folder(name).join("config.json")).expect("a config");
    serde_json::from_str(&text).expect("JSON")
}

/// A copy of a recorded model's folder with another config.json.
fn with_config(name: &str, config: &Value) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::write(copy.path().join("config.json"), config.to_string()).expect("written");
    let weights = "model.safetensors";
    std::fs::copy(folder(name).join(weights), copy.path().join(weights)).expect("copied");
    copy
}

#[test]
fn every_recorded_model_is_tested() {
    let entries = std::fs::read_dir(root().join("tests/golden")).expect("the golden folder");
    let mut found: Vec<String> = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().join("config.json").exists())
        .map(|entry| entry.file_name().into_string().expect("UTF-8"))
        .collect();
    found.sort();
    assert_eq!(found, MODELS);
}

#[test]
fn llama_with_scaled_rope() {
    check("llama-llama3");
    check("llama-linear");
}

#[test]
fn llama_with_yarn() {
    check("llama-yarn");
    check("llama-yarn-factor");
    check("llama-yarn-mscale");
}

#[test]
fn qwen() {
    check("qwen2-yarn");
    check("qwen3");
    check("qwen3-yarn");
}

#[test]
fn mistral() {
    check("mistral");
}

#[test]
fn glm() {
    check("glm");
    check("glm4");
}

/// The attention factor belongs to the rotated half of a head only.
#[test]
fn glm_with_yarn() {
    check("glm4-yarn");
}

/// Transformers 4 writes `rope_scaling` beside `rope_theta` and `partial_rotary_factor`,
/// transformers 5 `rope_parameters` with both inside. The recorded configs mix the two; this test
/// reads each in the other spelling.
#[test]
fn both_spellings_of_the_rotary_settings() {
    let mut counts = [0, 0];
    for name in MODELS {
        let mut config = config_of(name);
        let new = config["rope_parameters"].is_object();
        counts[usize::from(new)] += 1;
        match new {
            true => spell_old(&mut config),
            false => spell_new(&mut config),
        }
        let error = worst_error(with_config(name, &config).path(), name);
        assert!(error < TOLERANCE, "{name} spelt as {config}: {error:e}");
    }
    assert!(counts.iter().all(|&count| count >= 3), "{counts:?}");
}

fn take(config: &mut Value, key: &str) -> Option<Value> {
    config.as_object_mut().expect("an object").remove(key)
}

fn spell_old(config: &mut Value) {
    let mut rope = take(config, "rope_parameters").expect("the new spelling");
    for key in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = take(&mut rope, key) {
            config[key] = value;
        }
    }
    config["rope_scaling"] = match rope["rope_type"] == "default" {
        true => Value::Null,
        false => rope,
    };
}

fn spell_new(config: &mut Value) {
    let mut rope = match take(config, "rope_scaling") {
        None | Some(Value::Null) => json!({"rope_type": "default"}),
        Some(rope) => rope,
    };
    if let Some(kind) = take(&mut rope, "type") {
        rope["rope_type"] = kind;
    }
    for key in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = take(config, key) {
            rope[key] = value;
        }
    }
    config["rope_parameters"] = rope;
}

/// A wrong reading of a config must show: the test would be worth nothing if the numbers hardly
/// depended on it.
#[test]
fn the_recorded_prompts_tell_scalings_apart() {
    for (name, key, value) in [
        ("llama-yarn", "factor", json!(3.0)),
        ("llama-yarn-factor", "attention_factor", json!(1.2)),
        ("llama-yarn-mscale", "truncate", json!(true)),
        ("llama-linear", "factor", json!(2.0)),
        ("llama-llama3", "high_freq_factor", json!(3.0)),
        ("qwen2-yarn", "original_max_position_embeddings", json!(64)),
    ] {
        let mut config = config_of(name);
        let spelling = match config["rope_parameters"].is_object() {
            true => "rope_parameters",
            false => "rope_scaling",
        };
        assert_ne!(config[spelling][key], value);
        config[spelling][key] = value;
        let error = worst_error(with_config(name, &config).path(), name);
        assert!(error > 10.0 * TOLERANCE, "{name} without its {key}: {error:e}");
    }
}
