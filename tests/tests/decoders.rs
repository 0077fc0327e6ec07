//! Invariant 1: full prefill of every decoder family equals candle-transformers' own model, on
//! random weights in f32.
//!
//! Features that candle-transformers lacks (YaRN, linear scaling) are tested in `golden.rs`.
//! Weights are written the way Hugging Face writes them and read back from files, so that names,
//! shapes and shards are tested too.

mod common;
mod families;

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use common::last_logits;
use families::{Family, judge, weights};
use serde_json::{Value, json};
use tempfile::TempDir;
use tributary_model::{LoadFormat, Model, load};
use tributary_tests::relative_error;

const TOLERANCE: f64 = 1e-4;
const LENGTHS: [usize; 4] = [1, 2, 17, 100];

/// Sizes of a decoder: hidden, intermediate, layers, heads, KV heads, vocabulary.
type Sizes = (usize, usize, usize, usize, usize, usize);

const SHAPES: [Sizes; 3] = [(48, 80, 3, 4, 2, 97), (64, 96, 2, 4, 1, 61), (40, 33, 2, 5, 5, 128)];

fn config(family: Family, sizes: Sizes, changes: &[(&str, Value)]) -> Value {
    let (hidden, intermediate, layers, heads, kv_heads, vocab) = sizes;
    let mut config = json!({
        "architectures": [family.architecture()],
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
    });
    for (key, value) in changes {
        config[key] = value.clone();
    }
    config
}

/// A model folder with the config and the weights spread over `shards` files.
fn write(config: &Value, weights: &HashMap<String, Tensor>, shards: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let mut names: Vec<&String> = weights.keys().collect();
    names.sort();
    let file = |shard: usize| match shards {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{shards:05}.safetensors", shard + 1),
    };
    let mut map = serde_json::Map::new();
    for shard in 0..shards {
        let own = names.iter().skip(shard).step_by(shards);
        let part: HashMap<String, Tensor> = own.map(|&name| (name.clone(), weights[name].clone())).collect();
        map.extend(part.keys().map(|name| (name.clone(), json!(file(shard)))));
        candle_core::safetensors::save(&part, folder.path().join(file(shard))).expect("saved");
    }
    if shards > 1 {
        let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        let path = folder.path().join("model.safetensors.index.json");
        std::fs::write(path, index.to_string()).expect("written");
    }
    folder
}

fn loaded(config: &Value, weights: &HashMap<String, Tensor>, shards: usize, dtype: DType) -> Arc<dyn Model> {
    let folder = write(config, weights, shards);
    load(folder.path(), LoadFormat::Safetensors, dtype, &Device::Cpu).expect("the model loads")
}

fn prompt(vocab: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut random = families::Random::new(seed);
    (0..count).map(|_| (random.uniform() * vocab as f32) as u32).collect()
}

/// Both models on the same files, at every length.
fn check(family: Family, config: &Value, seed: u64, shards: usize) {
    let weights = weights(family, config, seed);
    let model = loaded(config, &weights, shards, DType::F32);
    for length in LENGTHS {
        let ids = prompt(model.config().vocab, length, seed + length as u64);
        let expected = judge(family, config, &weights, &ids);
        let error = relative_error(&last_logits(&model, &ids), &expected);
        println!("{family:?}, seed {seed}, {length} tokens: relative error {error:.1e}");
        assert!(error < TOLERANCE, "{family:?}, seed {seed}, {length} tokens: {error:e}\n{config}");
    }
}

#[test]
fn llama() {
    for (seed, sizes) in (1..).zip(SHAPES) {
        for tied in [false, true] {
            let config = config(Family::Llama, sizes, &[("tie_word_embeddings", json!(tied))]);
            check(Family::Llama, &config, seed, 1);
        }
    }
}

#[test]
fn llama_with_llama3_scaling() {
    let scaling = json!({
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    });
    for (seed, sizes) in (11..).zip(SHAPES) {
        let changes = [("rope_scaling", scaling.clone()), ("rope_theta", json!(500.0))];
        check(Family::Llama, &config(Family::Llama, sizes, &changes), seed, 1);
    }
}

#[test]
fn mistral() {
    for (seed, sizes) in (21..).zip(SHAPES) {
        let changes = [("sliding_window", Value::Null), ("rope_theta", json!(1e6))];
        check(Family::Mistral, &config(Family::Mistral, sizes, &changes), seed, 1);
        let wide = [("head_dim", json!(32)), ("sliding_window", Value::Null)];
        check(Family::Mistral, &config(Family::Mistral, sizes, &wide), seed, 1);
    }
}

/// Also the family that is read from several shards.
#[test]
fn qwen2() {
    for (seed, sizes) in (31..).zip(SHAPES) {
        for tied in [false, true] {
            let changes = [
                ("tie_word_embeddings", json!(tied)),
                ("use_sliding_window", json!(false)),
                ("sliding_window", json!(4096)),
                ("max_window_layers", json!(2)),
            ];
            let config = config(Family::Qwen2, sizes, &changes);
            check(Family::Qwen2, &config, seed, if tied { 3 } else { 1 });
        }
    }
}

#[test]
fn qwen3() {
    for (seed, sizes) in (41..).zip(SHAPES) {
        for (tied, bias) in [(false, false), (true, false), (false, true)] {
            let changes = [
                ("head_dim", json!(32)),
                ("tie_word_embeddings", json!(tied)),
                ("attention_bias", json!(bias)),
                ("use_sliding_window", json!(false)),
                ("sliding_window", Value::Null),
                ("max_window_layers", json!(2)),
            ];
            check(Family::Qwen3, &config(Family::Qwen3, sizes, &changes), seed, 1);
        }
    }
}

/// candle-transformers has this family under ChatGLM's names only; the judge is given the same
/// numbers renamed.
#[test]
fn glm() {
    for (seed, sizes) in (51..).zip([(48, 80, 3, 3, 1, 97), (64, 40, 2, 4, 2, 61)]) {
        let changes = [("attention_bias", json!(true)), ("partial_rotary_factor", json!(0.5)), ("head_dim", json!(16))];
        check(Family::Glm, &config(Family::Glm, sizes, &changes), seed, 1);
    }
}

#[test]
fn glm4() {
    for (seed, sizes) in (61..).zip(SHAPES) {
        for bias in [false, true] {
            let changes =
                [("attention_bias", json!(bias)), ("partial_rotary_factor", json!(0.5)), ("head_dim", json!(16))];
            check(Family::Glm4, &config(Family::Glm4, sizes, &changes), seed, 1);
        }
    }
}

#[test]
fn a_missing_head_dim_is_what_the_family_says() {
    let over_heads = [Family::Llama, Family::Mistral, Family::Qwen2].map(|family| (family, 12)); // 48 / 4
    for (family, head_dim) in over_heads.into_iter().chain([(Family::Qwen3, 128), (Family::Glm4, 128)]) {
        let silent = config(family, SHAPES[0], &[]);
        let spoken = config(family, SHAPES[0], &[("head_dim", json!(head_dim))]);
        let weights = weights(family, &spoken, 71);
        let ids = prompt(97, 17, 72);
        let model = loaded(&silent, &weights, 1, DType::F32);
        assert_eq!(model.config().head_dim, head_dim, "{family:?}");
        let same = loaded(&spoken, &weights, 1, DType::F32);
        assert_eq!(last_logits(&model, &ids), last_logits(&same, &ids), "{family:?}");
    }
}

/// bf16 has 8 bits of precision: each weight, key and value is off by up to 0.4 %. Over three
/// layers the logits stay within 5 % of the largest, and are off by more than a ten-thousandth:
/// they would not be if the dtype had not reached the weights.
#[test]
fn bf16_weights_stay_near_f32() {
    for (family, changes) in [
        (Family::Llama, vec![]),
        (Family::Qwen3, vec![("head_dim", json!(32))]),
        (Family::Glm4, vec![("head_dim", json!(16))]),
    ] {
        let config = config(family, SHAPES[0], &changes);
        let weights = weights(family, &config, 81);
        let exact = loaded(&config, &weights, 1, DType::F32);
        let coarse = loaded(&config, &weights, 1, DType::BF16);
        for length in LENGTHS {
            let ids = prompt(97, length, 82);
            let error = relative_error(&last_logits(&coarse, &ids), &last_logits(&exact, &ids));
            println!("{family:?} in bf16, {length} tokens: relative error {error:.1e}");
            assert!(error < 0.05, "{family:?}, {length} tokens: {error:e}");
            assert!(error > 1e-4, "{family:?}, {length} tokens: {error:e}, was it bf16 at all?");
        }
    }
}
