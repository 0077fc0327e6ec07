//! The config.json that a GGUF file's metadata stand for. (llama.cpp, `src/llama-model.cpp` and
//! `conversion/`, for what a key means and what a missing one does.)

use serde_json::{Map, Value, json};

use candle_core::DType;

use super::file::{Gguf, Stored};
use crate::rope_config::DIVIDED;

/// The architectures that are known, and their names in a config.json.
const ARCHITECTURES: [(&str, &str); 9] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3moe", "Qwen3MoeForCausalLM"),
    ("gemma3", "Gemma3ForCausalLM"),
    ("gpt-oss", "GptOssForCausalLM"),
    ("glm4", "Glm4ForCausalLM"),
    ("glm4moe", "Glm4MoeForCausalLM"),
    ("mistral3", "Ministral3ForCausalLM"),
];

/// Texts of control tokens that end an answer in the families above, whether a file says so or not.
const ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|return|>",
    "<|call|>",
];

/// The key of the norms' epsilon.
const EPSILON: &str = "attention.layer_norm_rms_epsilon";

/// The type of control tokens.
pub(super) const CONTROL: u64 = 3;

/// The file's architecture.
///
/// # Errors
/// Returns a message if it is not supported, or if the file is no model.
pub(super) fn architecture(file: &Gguf) -> Result<&'static str, String> {
    let stated = file.text("general.architecture").unwrap_or("none: `general.architecture` is missing");
    if let Some(kind) = file.text("general.type").filter(|kind| *kind != "model") {
        return Err(format!("it holds `{}`, not a model", kind.escape_debug()));
    }
    let known = ARCHITECTURES.iter().find(|(name, _)| *name == stated);
    let all = ARCHITECTURES.map(|(name, _)| name).join(", ");
    known.map(|(name, _)| *name).ok_or_else(|| {
        let stated: String = stated.chars().filter(|letter| !letter.is_control()).take(80).collect();
        format!("architecture `{stated}` is not supported in GGUF files; supported are {all}")
    })
}

/// Metadata of one architecture.
struct Facts<'a> {
    file: &'a Gguf,
    architecture: &'static str,
}

impl Facts<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        self.file.metadata.get(&format!("{}.{key}", self.architecture))
    }

    fn number(&self, key: &str) -> Result<u64, String> {
        self.value(key)
            .and_then(Value::as_u64)
            .ok_or_else(|| format!("`{}.{key}` is missing or no number", self.architecture))
    }

    /// A number that may be missing.
    fn optional(&self, key: &str) -> Result<Option<u64>, String> {
        self.value(key).map(|_| self.number(key)).transpose()
    }

    /// A finite float that may be missing.
    fn float(&self, key: &str) -> Result<Option<f64>, String> {
        let one = |value: &Value| {
            value.as_f64().ok_or_else(|| format!("`{}.{key}` {value}: must be a finite number", self.architecture))
        };
        self.value(key).map(one).transpose()
    }

    /// Rejects a key whose value is another one than what is computed.
    fn expect(&self, key: &str, wanted: f64) -> Result<(), String> {
        match self.float(key)? {
            Some(value) if value != wanted => Err(format!("`{}.{key}` {value} is not supported", self.architecture)),
            _ => Ok(()),
        }
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.file.tensors.contains_key(name)
    }

    /// Width of a head.
    fn head_dim(&self) -> Result<u64, String> {
        if let Some(width) = self.optional("attention.key_length")? {
            let of_values = self.optional("attention.value_length")?.unwrap_or(width);
            return match of_values == width {
                true => Ok(width),
                false => Err(format!("heads of {width} for keys and {of_values} for values are not supported")),
            };
        }
        let (hidden, heads) = (self.number("embedding_length")?, self.number("attention.head_count")?);
        Ok(hidden / heads.max(1))
    }

    /// Number of layers, those that predict further tokens left out.
    fn layers(&self) -> Result<u64, String> {
        let (all, tensors) = (self.number("block_count")?, self.file.tensors.len() as u64);
        let layers = all.saturating_sub(self.optional("nextn_predict_layers")?.unwrap_or(0));
        match layers > 0 && layers <= tensors {
            true => Ok(layers),
            false => Err(format!("`{}.block_count` {all}: {layers} layers in {tensors} tensors", self.architecture)),
        }
    }
}

/// The config.json of a file's model.
///
/// # Errors
/// Returns a message if the architecture is not supported, if a key is missing, or if rotary
/// frequencies are none that a config can state.
pub(super) fn config(file: &Gguf) -> Result<Value, String> {
    let facts = Facts { file, architecture: architecture(file)? };
    let name = ARCHITECTURES.iter().find(|(name, _)| *name == facts.architecture).map(|(_, name)| *name);
    let embedding = file.tensors.get("token_embd.weight").ok_or("tensor `token_embd.weight` is missing")?;
    let head_dim = facts.head_dim()?;
    let mut config = json!({
        "architectures": [name],
        "vocab_size": embedding.shape[0],
        "hidden_size": facts.number("embedding_length")?,
        "intermediate_size": facts.number("feed_forward_length").or_else(|_| facts.number("expert_feed_forward_length"))?,
        "num_hidden_layers": facts.layers()?,
        "num_attention_heads": facts.number("attention.head_count")?,
        "num_key_value_heads": match facts.optional("attention.head_count_kv")? {
            Some(heads) => heads,
            None => facts.number("attention.head_count")?,
        },
        "head_dim": head_dim,
        "rms_norm_eps": facts.float(EPSILON)?.ok_or_else(|| format!("`{}.{EPSILON}` is missing", facts.architecture))?,
        "max_position_embeddings": facts.number("context_length")?,
        "rope_theta": facts.float("rope.freq_base")?.unwrap_or(10_000.0),
        "partial_rotary_factor": rotating(&facts, head_dim)?,
        "tie_word_embeddings": !facts.has_tensor("output.weight"),
        "attention_bias": facts.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": facts.has_tensor("blk.0.ffn_down.bias"),
    });
    let fields = config.as_object_mut().expect("an object");
    if let Some(scaling) = scaling(&facts, head_dim)? {
        fields.insert("rope_scaling".to_owned(), scaling);
    }
    family(&facts, fields, head_dim)?;
    tokens(file, fields);
    Ok(config)
}

/// The share of a head that rotates, a trifle more, so that a product with it is no less than the
/// number of dimensions.
fn rotating(facts: &Facts<'_>, head_dim: u64) -> Result<f64, String> {
    let dims = facts.optional("rope.dimension_count")?.unwrap_or(head_dim);
    Ok(if dims == head_dim { 1.0 } else { (dims as f64 + 1e-6) / head_dim.max(1) as f64 })
}

/// What only one family has.
fn family(facts: &Facts<'_>, fields: &mut Map<String, Value>, head_dim: u64) -> Result<(), String> {
    let mut set = |key: &str, value: Value| _ = fields.insert(key.to_owned(), value);
    match facts.architecture {
        "gemma3" => {
            // The largest one's heads are not what its scores are divided by.
            let (heads, layers) = (facts.number("attention.head_count")?, facts.layers()?);
            let largest = layers == 62 && heads == 32;
            let scalar = if largest { facts.number("embedding_length")? / heads } else { head_dim };
            set("query_pre_attn_scalar", scalar.into());
            set("sliding_window", facts.number("attention.sliding_window")?.into());
            set("rope_local_base_freq", facts.float("rope.freq_base_swa")?.unwrap_or(10_000.0).into());
            for (key, name) in [
                ("attn_logit_softcapping", "attn_logit_softcapping"),
                ("final_logit_softcapping", "final_logit_softcapping"),
            ] {
                if let Some(cap) = facts.value(key).filter(|cap| cap.as_f64() != Some(0.0)) {
                    set(name, cap.clone());
                }
            }
        }
        "gpt-oss" => {
            facts.expect("rope.freq_base_swa", facts.float("rope.freq_base")?.unwrap_or(10_000.0))?;
            set("num_local_experts", facts.number("expert_count")?.into());
            set("num_experts_per_tok", facts.number("expert_used_count")?.into());
            set("intermediate_size", facts.number("expert_feed_forward_length")?.into());
            set("sliding_window", facts.number("attention.sliding_window")?.into());
        }
        _ => {}
    }
    if matches!(facts.architecture, "gemma3" | "gpt-oss")
        && let Some(pattern) = facts.value("attention.sliding_window_pattern")
    {
        set("layer_types", layer_types(pattern, facts.layers()?)?);
    }
    of_experts(facts, fields)
}

/// What only families with a router of their own have.
fn of_experts(facts: &Facts<'_>, fields: &mut Map<String, Value>) -> Result<(), String> {
    let mut set = |key: &str, value: Value| _ = fields.insert(key.to_owned(), value);
    match facts.architecture {
        "qwen3moe" => {
            facts.expect("expert_gating_func", 1.0)?; // softmax
            set("num_experts", facts.number("expert_count")?.into());
            set("num_experts_per_tok", facts.number("expert_used_count")?.into());
            set("moe_intermediate_size", facts.number("expert_feed_forward_length")?.into());
            set("norm_topk_prob", true.into());
            let dense = |layer: &u64| !facts.has_tensor(&format!("blk.{layer}.ffn_gate_exps.weight"));
            set("mlp_only_layers", (0..facts.layers()?).filter(dense).collect::<Vec<u64>>().into());
        }
        "glm4moe" => {
            facts.expect("expert_gating_func", 2.0)?; // sigmoid
            set("use_qk_norm", facts.has_tensor("blk.0.attn_q_norm.weight").into());
            for (key, name) in [
                ("expert_count", "n_routed_experts"),
                ("expert_used_count", "num_experts_per_tok"),
                ("expert_feed_forward_length", "moe_intermediate_size"),
                ("expert_shared_count", "n_shared_experts"),
                ("leading_dense_block_count", "first_k_dense_replace"),
            ] {
                set(name, facts.number(key)?.into());
            }
            for (key, name) in [
                ("expert_weights_scale", "routed_scaling_factor"),
                ("expert_weights_norm", "norm_topk_prob"),
                ("expert_group_count", "n_group"),
                ("expert_group_used_count", "topk_group"),
            ] {
                if let Some(value) = facts.value(key) {
                    set(name, value.clone());
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// The kind of each layer, from a period or a list.
fn layer_types(pattern: &Value, layers: u64) -> Result<Value, String> {
    let is_local: Vec<bool> = match pattern {
        Value::Array(list) if list.len() as u64 >= layers => {
            let local = |one: &Value| one.as_bool().or_else(|| one.as_u64().map(|one| one != 0)).unwrap_or_default();
            list.iter().take(layers as usize).map(local).collect()
        }
        number => {
            let period = number.as_u64().filter(|&period| period > 0).ok_or("sliding_window_pattern is no number")?;
            (0..layers).map(|layer| layer % period != period - 1).collect()
        }
    };
    let name = |local: &bool| if *local { "sliding_attention" } else { "full_attention" };
    Ok(is_local.iter().map(name).collect::<Vec<_>>().into())
}

/// The scaling of rotary frequencies.
fn scaling(facts: &Facts<'_>, head_dim: u64) -> Result<Option<Value>, String> {
    // What programs make of the second one differs.
    for key in ["rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"] {
        if facts.value(key).is_some() {
            return Err(format!("`{}.{key}` is not supported", facts.architecture));
        }
    }
    facts.expect("rope.scaling.yarn_ext_factor", 1.0)?;
    let divisors = of_divisors(facts, head_dim)?;
    let stated = match facts.float("rope.scaling.factor")? {
        None => facts.float("rope.scale_linear")?,
        factor => factor,
    };
    let factor = stated.filter(|&factor| factor != 1.0 && factor != 0.0);
    let kind = facts.value("rope.scaling.type").and_then(Value::as_str).unwrap_or("linear");
    if divisors.is_some() && (factor.is_some() || kind == "yarn") {
        return Err("rope_freqs.weight beside a scaling of another kind is not supported".to_owned());
    }
    match (kind, factor) {
        ("none", _) | ("linear", None) => Ok(divisors),
        ("linear", Some(factor)) => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
        ("yarn", _) => yarn(facts, stated.ok_or("rope.scaling.factor of yarn is missing")?).map(Some),
        (other, _) => {
            let other = other.escape_debug();
            Err(format!("rope.scaling.type `{other}` is not supported; none, linear and yarn are"))
        }
    }
}

fn yarn(facts: &Facts<'_>, factor: f64) -> Result<Value, String> {
    let mut fields = json!({"rope_type": "yarn", "factor": factor});
    for (key, name) in [
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
        ("attention.temperature_scale", "llama_4_scaling_beta"),
    ] {
        if let Some(value) = facts.float(key)? {
            fields[name] = value.into();
        }
    }
    if facts.architecture == "gpt-oss" {
        // The format has no key for it.
        fields["truncate"] = false.into();
    }
    if let Some(scale) = facts.float("rope.scaling.yarn_log_multiplier")? {
        (fields["mscale"], fields["mscale_all_dim"]) = (scale.into(), scale.into());
    }
    Ok(fields)
}

/// The scaling whose divisors of rotary frequencies a file has in place of its numbers.
fn of_divisors(facts: &Facts<'_>, head_dim: u64) -> Result<Option<Value>, String> {
    let Some(place) = facts.file.tensors.get("rope_freqs.weight") else { return Ok(None) };
    if place.stored != Stored::Plain(DType::F32) {
        return Err("rope_freqs.weight: numbers in F32 were expected".to_owned());
    }
    let bytes = facts.file.bytes(place, 0, place.bytes()).map_err(|error| error.to_string())?;
    let divisors: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|one| f32::from_le_bytes(*one)).collect();
    if divisors.len() as u64 != head_dim / 2 {
        return Err(format!("rope_freqs.weight: {} divisors for heads of {head_dim}", divisors.len()));
    }
    let is_plain = divisors.iter().all(|&divisor| divisor == 1.0);
    Ok((!is_plain).then(|| json!({"rope_type": DIVIDED, "divisors": divisors})))
}

/// The tokens that begin a text and end an answer.
fn tokens(file: &Gguf, fields: &mut Map<String, Value>) {
    let id = |name: &str| file.number(&format!("tokenizer.ggml.{name}_token_id"));
    fields.extend(id("bos").map(|bos| ("bos_token_id".to_owned(), bos.into())));
    let mut ends: Vec<u64> = ["eos", "eot", "eom"].iter().filter_map(|name| id(name)).collect();
    let list = |name: &str| file.metadata.get(name).and_then(Value::as_array).into_iter().flatten();
    let typed = list("tokenizer.ggml.tokens").zip(list("tokenizer.ggml.token_type")).enumerate();
    for (id, (token, kind)) in typed {
        let is_end = token.as_str().is_some_and(|token| ENDS.contains(&token)) && kind.as_u64() == Some(CONTROL);
        if is_end && !ends.contains(&(id as u64)) {
            ends.push(id as u64);
        }
    }
    fields.insert("eos_token_id".to_owned(), ends.into());
}
