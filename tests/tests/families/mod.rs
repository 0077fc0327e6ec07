//! Random weights of every decoder family under Hugging Face's names, and candle-transformers'
//! model of each as the judge. Nothing here looks at the worker's own reading of a config.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models;
use serde_json::{Value, from_value, json};
use tributary_protocol::SplitMix64;

/// Invariant of every config given to the judge.
const READABLE: &str = "a config that candle-transformers reads";

/// A decoder family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Glm,
    Glm4,
}

impl Family {
    /// Its name in `architectures`.
    pub fn architecture(self) -> String {
        format!("{self:?}ForCausalLM")
    }

    fn is_glm(self) -> bool {
        matches!(self, Family::Glm | Family::Glm4)
    }
}

/// Random weights.
pub struct Random(SplitMix64);

impl Random {
    /// The weights of a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// In [0, 1).
    pub fn uniform(&mut self) -> f32 {
        self.0.uniform()
    }

    fn tensor(&mut self, shape: &[usize], low: f32, high: f32) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| low + (high - low) * self.uniform()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).expect("as many values as the shape holds")
    }
}

fn size(config: &Value, key: &str) -> usize {
    config[key].as_u64().unwrap_or_else(|| panic!("{key} in {config}")) as usize
}

fn head_dim(config: &Value) -> usize {
    match config.get("head_dim") {
        Some(value) => value.as_u64().expect("a number") as usize,
        None => size(config, "hidden_size") / size(config, "num_attention_heads"),
    }
}

/// Names and shapes of a family's tensors.
fn shapes(family: Family, config: &Value) -> Vec<(String, Vec<usize>)> {
    let (hidden, wide) = (size(config, "hidden_size"), size(config, "intermediate_size"));
    let q = size(config, "num_attention_heads") * head_dim(config);
    let kv = size(config, "num_key_value_heads") * head_dim(config);
    let bias = family == Family::Qwen2 || config["attention_bias"] == true;
    let mut list = vec![
        ("model.embed_tokens.weight".to_owned(), vec![size(config, "vocab_size"), hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if config["tie_word_embeddings"] == false {
        list.push(("lm_head.weight".to_owned(), vec![size(config, "vocab_size"), hidden]));
    }
    for layer in 0..size(config, "num_hidden_layers") {
        let mut push = |name: &str, shape: &[usize]| {
            list.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        push("input_layernorm.weight", &[hidden]);
        push("post_attention_layernorm.weight", &[hidden]);
        for (name, out) in [("q", q), ("k", kv), ("v", kv)] {
            push(&format!("self_attn.{name}_proj.weight"), &[out, hidden]);
            if bias {
                push(&format!("self_attn.{name}_proj.bias"), &[out]);
            }
        }
        push("self_attn.o_proj.weight", &[hidden, q]);
        if bias && family == Family::Qwen3 {
            push("self_attn.o_proj.bias", &[hidden]);
        }
        if family == Family::Qwen3 {
            push("self_attn.q_norm.weight", &[head_dim(config)]);
            push("self_attn.k_norm.weight", &[head_dim(config)]);
        }
        if family == Family::Glm4 {
            push("post_self_attn_layernorm.weight", &[hidden]);
            push("post_mlp_layernorm.weight", &[hidden]);
        }
        if family.is_glm() {
            push("mlp.gate_up_proj.weight", &[2 * wide, hidden]);
        } else {
            push("mlp.gate_proj.weight", &[wide, hidden]);
            push("mlp.up_proj.weight", &[wide, hidden]);
        }
        push("mlp.down_proj.weight", &[hidden, wide]);
    }
    list
}

/// Weights from a seed: norms between 0.5 and 1.5, biases up to 0.5, matrices that keep a row's
/// size, so that every tensor matters and attention is neither flat nor a single peak.
pub fn weights(family: Family, config: &Value, seed: u64) -> HashMap<String, Tensor> {
    let mut random = Random::new(seed);
    let draw = |(name, shape): (String, Vec<usize>)| {
        let (low, high) = if name.contains("norm") {
            (0.5, 1.5)
        } else if name.ends_with("bias") {
            (-0.5, 0.5)
        } else if name.contains("embed_tokens") {
            (-1.7, 1.7)
        } else {
            let spread = 2.2 / (shape[1] as f32).sqrt(); // standard deviation 1.27/√in
            (-spread, spread)
        };
        let tensor = random.tensor(&shape, low, high);
        (name, tensor)
    };
    shapes(family, config).into_iter().map(draw).collect()
}

/// Logits `[vocab]` after the last of `ids`, by candle-transformers.
pub fn judge(family: Family, config: &Value, weights: &HashMap<String, Tensor>, ids: &[u32]) -> Vec<f32> {
    let logits = forward(family, config, weights.clone(), ids).expect("candle-transformers runs");
    logits.flatten_all().and_then(|x| x.to_vec1()).expect("f32")
}

fn forward(family: Family, config: &Value, weights: HashMap<String, Tensor>, ids: &[u32]) -> Result<Tensor> {
    let device = Device::Cpu;
    let input = Tensor::new(ids, &device)?.unsqueeze(0)?;
    let builder = |weights| VarBuilder::from_tensors(weights, DType::F32, &device);
    match family {
        Family::Llama => {
            let read: models::llama::LlamaConfig = from_value(config.clone()).expect(READABLE);
            let config = read.into_config(false);
            let mut cache = models::llama::Cache::new(false, DType::F32, &config, &device)?;
            models::llama::Llama::load(builder(weights), &config)?.forward(&input, 0, &mut cache)
        }
        Family::Mistral => {
            let config = from_value(config.clone()).expect(READABLE);
            models::mistral::Model::new(&config, builder(weights))?.forward(&input, 0)
        }
        Family::Qwen2 => {
            let config = from_value(config.clone()).expect(READABLE);
            models::qwen2::ModelForCausalLM::new(&config, builder(weights))?.forward(&input, 0)
        }
        Family::Qwen3 => {
            let config = from_value(config.clone()).expect(READABLE);
            models::qwen3::ModelForCausalLM::new(&config, builder(weights))?.forward(&input, 0)
        }
        Family::Glm => {
            let renamed = chat_glm_weights(config, &weights)?;
            let config = from_value(chat_glm_config(config)).expect(READABLE);
            models::glm4::Model::new(&config, builder(renamed))?.forward(&input)
        }
        Family::Glm4 => {
            let config = from_value(config.clone()).expect(READABLE);
            models::glm4_new::ModelForCausalLM::new(&config, builder(weights))?.forward(&input, 0)
        }
    }
}

/// The config as ChatGLM spells it: half of a head rotates, with base 10000.
fn chat_glm_config(config: &Value) -> Value {
    assert_eq!(config["partial_rotary_factor"], 0.5);
    assert_eq!(config["rope_theta"], 10000.0);
    json!({
        "num_layers": config["num_hidden_layers"],
        "padded_vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "kv_channels": head_dim(config),
        "num_attention_heads": config["num_attention_heads"],
        "seq_length": config["max_position_embeddings"],
        "layernorm_epsilon": config["rms_norm_eps"],
        "rmsnorm": true,
        "apply_residual_connection_post_layernorm": false,
        "post_layer_norm": true,
        "add_bias_linear": false,
        "add_qkv_bias": config["attention_bias"],
        "bias_dropout_fusion": true,
        "multi_query_attention": true,
        "multi_query_group_num": config["num_key_value_heads"],
        "apply_query_key_layer_scaling": true,
        "attention_softmax_in_fp32": true,
        "fp32_residual_connection": false,
    })
}

/// The same numbers under ChatGLM's names: q, k and v are one projection.
fn chat_glm_weights(config: &Value, weights: &HashMap<String, Tensor>) -> Result<HashMap<String, Tensor>> {
    let mut renamed = HashMap::new();
    for (from, to) in [
        ("model.embed_tokens.weight", "embedding.word_embeddings.weight"),
        ("model.norm.weight", "encoder.final_layernorm.weight"),
        ("lm_head.weight", "output_layer.weight"),
    ] {
        renamed.insert(format!("transformer.{to}"), weights[from].clone());
    }
    for layer in 0..size(config, "num_hidden_layers") {
        let theirs = |name: &str| format!("transformer.encoder.layers.{layer}.{name}");
        let ours = |name: &str| &weights[&format!("model.layers.{layer}.{name}")];
        for (from, to) in [
            ("input_layernorm", "input_layernorm"),
            ("post_attention_layernorm", "post_attention_layernorm"),
            ("self_attn.o_proj", "self_attention.dense"),
            ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
            ("mlp.down_proj", "mlp.dense_4h_to_h"),
        ] {
            renamed.insert(theirs(&format!("{to}.weight")), ours(&format!("{from}.weight")).clone());
        }
        for part in ["weight", "bias"] {
            let parts = ["q", "k", "v"].map(|name| ours(&format!("self_attn.{name}_proj.{part}")));
            let fused = Tensor::cat(&parts, 0)?;
            renamed.insert(theirs(&format!("self_attention.query_key_value.{part}")), fused);
        }
    }
    Ok(renamed)
}
