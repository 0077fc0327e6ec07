//! The config of a decoder, read from the config.json of a Hugging Face folder into one form for
//! every family.

mod whole;

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tributary_kernels::{Gate, Pairing, QueryGrowth, RopeScaling};

use self::whole::text_part;
use crate::error::{Error, Result};
use crate::experts::{Experts, Stated};
use crate::families::{self, FAMILIES, Family, OutputNorms, Towers, Window, WithTower};
use crate::preprocessing::{self, Preprocessing, Sizes};
use crate::quantised::Quantisation;
use crate::rope_config;
use crate::vision_config::{self, OfText, VisionConfig};
use crate::windows::{self, Windows};

/// The largest size that is accepted, so that products of sizes do not overflow.
const SIZE_LIMIT: usize = 1 << 20;

/// The largest number of parameters of experts that is accepted.
const MOST_NUMBERS: f64 = 1e15;

/// A field that is present, `null` included: a missing field is None.
fn stated<'de, D: Deserializer<'de>>(field: D) -> std::result::Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(field).map(Some)
}

/// Everything in which decoders differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name in `architectures`.
    pub architecture: String,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP, of layers without experts.
    pub intermediate: usize,
    /// Experts in place of the MLP, if some layers have them.
    pub experts: Option<Experts>,
    /// Number of decoder layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads.
    pub kv_heads: usize,
    /// Width of a head; not always hidden / heads.
    pub head_dim: usize,
    /// Number of a head's dims that rotate.
    pub rotary_dims: usize,
    /// Pairing of the rotating dims.
    pub pairing: Pairing,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// For each rotating pair the axis whose position turns it, if rows stand at places on three
    /// axes: 0 for time, 1 for height, 2 for width.
    pub rope_axes: Option<Arc<[u8]>>,
    /// Base of the rotary frequencies in layers with a window, which are not scaled, if it is
    /// another one.
    pub window_rope_theta: Option<f64>,
    /// Growth of queries with their position, if they grow.
    pub query_growth: Option<QueryGrowth>,
    /// Epsilon of every RMS norm.
    pub norm_eps: f64,
    /// Whether the output projection has the embedding's weights.
    pub tied_embeddings: bool,
    /// Whether q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the MLP's projections have a bias.
    pub mlp_bias: bool,
    /// Whether queries and keys are normalised per head before RoPE (Qwen3).
    pub qk_norm: bool,
    /// Whether the gate and up projections are one tensor, gate first (GLM).
    pub fused_gate_up: bool,
    /// Norms of the outputs of attention and MLP, if there are any.
    pub output_norms: Option<OutputNorms>,
    /// The MLP's activation.
    pub gate: Gate,
    /// Whether rows of the embedding are multiplied by √hidden (Gemma).
    pub scaled_embedding: bool,
    /// The number whose root divides dot products, if it is not the width of a head.
    pub query_scalar: Option<f64>,
    /// Whether each query head has a learned sink (gpt-oss).
    pub sinks: bool,
    /// Maximum number of positions.
    pub max_positions: usize,
    /// The sliding windows of its layers, if some have one.
    pub windows: Option<Windows>,
    /// The tower that reads pictures, if it has one that is supported.
    pub vision: Option<VisionConfig>,
    /// Token that begins a sequence.
    pub bos: Option<u32>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
    /// The form of quantised weights, if its folder has such.
    pub(crate) quantisation: Option<Quantisation>,
}

#[derive(Deserialize)]
struct Raw {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    partial_rotary_factor: Option<f64>,
    rope_theta: Option<f64>,
    #[serde(default)]
    rope_scaling: serde_json::Value,
    #[serde(default)]
    rope_parameters: serde_json::Value,
    rms_norm_eps: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_qk_norm: Option<bool>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    query_pre_attn_scalar: Option<f64>,
    swiglu_limit: Option<f32>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    use_bidirectional_attention: Option<bool>,
    rope_local_base_freq: Option<f64>,
    sliding_window_pattern: Option<usize>,
    max_position_embeddings: usize,
    #[serde(default, deserialize_with = "stated")]
    sliding_window: Option<serde_json::Value>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    quantization_config: serde_json::Value,
    #[serde(default)]
    bos_token_id: serde_json::Value,
    #[serde(default)]
    eos_token_id: serde_json::Value,
}

impl Config {
    /// Reads `config.json` of a model folder, `generation_config.json` for the tokens that end an
    /// answer, and `preprocessor_config.json` or `processor_config.json` for what becomes of
    /// pictures, if it reads any.
    ///
    /// # Errors
    /// Returns an error if a file is missing or unreadable, if a field is missing, or if the
    /// architecture or the rotary scaling is not supported.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = read(&path)?;
        let mut config = Self::parse(&text, &path)?;
        let generation = folder.join("generation_config.json");
        if generation.exists() {
            let value: serde_json::Value = serde_json::from_str(&read(&generation)?)
                .map_err(|error| Error::Config { path: generation.clone(), what: error.to_string() })?;
            // An answer ends at the tokens of either file.
            let known = config.eos.clone();
            config.eos.extend(token_ids(&value["eos_token_id"]).into_iter().filter(|id| !known.contains(id)));
        }
        if let Some(vision) = &mut config.vision {
            vision.preprocessing = preprocessing_of(folder, vision)?;
        }
        Ok(config)
    }

    /// Parses the text of a config.json; `path` is for messages.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let bad = |what: String| Error::Config { path: path.to_owned(), what };
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        let (value, with_pictures) = text_part(value).map_err(&bad)?;
        let rope = rope_config::merged(&value["rope_scaling"], &value["rope_parameters"]);
        let family = family(&value, path)?;
        rope_config::agrees(&value).map_err(&bad)?;
        let value = with_defaults(value, family.defaults);
        agree(&value, "dtype", "torch_dtype").map_err(&bad)?;
        let stated = family.router.map(|scores| Ok((Stated::deserialize(&value)?, scores))).transpose();
        let stated = stated.map_err(|error: serde_json::Error| bad(error.to_string()))?;
        let raw: Raw = serde_json::from_value(value).map_err(|error| bad(error.to_string()))?;
        raw.check(family).map_err(&bad)?;
        let mut config = raw.into_config(family).map_err(&bad)?;
        config.check().map_err(&bad)?;
        if let Some((stated, scores)) = stated {
            config.experts = stated.into_experts(scores, config.layers).map_err(&bad)?;
            config.check_experts().map_err(&bad)?;
        }
        if let Some(whole) = with_pictures {
            if let Some(family) = families::with_tower(&whole.name) {
                config.add_tower(&whole.value, family, &rope).map_err(bad)?;
            }
            config.architecture = whole.name;
        }
        Ok(config)
    }

    /// Adds the tower of a family, and the axes on which its rows stand.
    fn add_tower(
        &mut self,
        whole: &serde_json::Value,
        family: &WithTower,
        rope: &serde_json::Value,
    ) -> std::result::Result<(), String> {
        if self.windows.is_some() {
            return Err("sliding windows in a decoder of pictures are not supported".to_owned());
        }
        let interleaved = family.tower == Towers::Qwen3;
        let sections = rope_config::sections(rope, interleaved)?;
        self.rope_axes = Some(vision_config::axes(sections, self.rotary_dims / 2, interleaved)?);
        let text = OfText { vocab: self.vocab, hidden: self.hidden, layers: self.layers };
        self.vision = Some(VisionConfig::of(whole, family.tower, text)?);
        Ok(())
    }

    fn check(&self) -> std::result::Result<(), String> {
        let sizes = [self.vocab, self.hidden, self.intermediate, self.layers, self.heads, self.kv_heads, self.head_dim];
        if sizes.contains(&0) {
            return Err("a size is 0".to_owned());
        }
        if let Some(size) = sizes.iter().find(|&&size| size > SIZE_LIMIT) {
            return Err(format!("a size is {size}; the maximum is {SIZE_LIMIT}"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            return Err(format!("num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head_dim {}: rotary embeddings rotate pairs, so it must be even", self.head_dim));
        }
        if self.rotary_dims == 0 || self.rotary_dims > self.head_dim || !self.rotary_dims.is_multiple_of(2) {
            let (rotary, head_dim) = (self.rotary_dims, self.head_dim);
            return Err(format!("partial_rotary_factor: {rotary} dims rotate; must be even, from 2 to {head_dim}"));
        }
        if !(self.norm_eps.is_finite() && (0.0..1.0).contains(&self.norm_eps)) {
            return Err(format!("rms_norm_eps {}: must be from 0 to 1", self.norm_eps));
        }
        if self.max_positions == 0 {
            return Err("max_position_embeddings is 0".to_owned());
        }
        if let Some(theta) = self.window_rope_theta {
            rope_config::check(theta, &RopeScaling::None)?;
        }
        rope_config::check(self.rope_theta, &self.rope_scaling)
    }

    /// Rejects experts of so many numbers that counts of them would overflow.
    fn check_experts(&self) -> std::result::Result<(), String> {
        let Some(Experts { sizes, .. }) = &self.experts else { return Ok(()) };
        let of_layer = 3.0 * self.hidden as f64 * (sizes.count * sizes.width + sizes.shared_width) as f64;
        match of_layer * (self.layers as f64) < MOST_NUMBERS {
            true => Ok(()),
            false => Err(format!(
                "{} experts of width {} in {} layers: too many numbers",
                sizes.count, sizes.width, self.layers
            )),
        }
    }

    /// Checks that a prompt and its answer fit into the model's positions.
    ///
    /// # Errors
    /// Returns [`Error::TooLong`] if they do not fit.
    pub fn check_length(&self, prompt_tokens: usize, max_tokens: usize) -> Result<()> {
        let limit = self.max_positions;
        if prompt_tokens + max_tokens <= limit {
            return Ok(());
        }
        Err(Error::TooLong { prompt_tokens, max_tokens, limit })
    }

    /// Softmax scale: 1/√head_dim, or 1/√[`query_scalar`](Self::query_scalar), times the square of
    /// YaRN's attention factor, if there is one (it belongs on the softmax, never on a cached key).
    /// If only a part of a head rotates, the scale lacks the factor: it belongs on that part of the
    /// query.
    pub fn scale(&self, attention_factor: f32) -> f32 {
        let factor = if self.rotary_dims == self.head_dim { attention_factor * attention_factor } else { 1.0 };
        let divisor = self.query_scalar.unwrap_or(self.head_dim as f64);
        factor / (divisor as f32).sqrt()
    }

    /// Width of the MLP in which a row meets as many matrix numbers as in a layer on average.
    pub fn mlp_width(&self) -> usize {
        let dense = self.intermediate;
        self.experts.as_ref().map_or(dense, |experts| experts.sizes.mean_width(self.layers, dense))
    }

    /// Number of parameters, from the shapes.
    pub fn parameters(&self) -> usize {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let attention = self.hidden * (q + 2 * kv) + q * self.hidden;
        let mlps = match &self.experts {
            Some(experts) => experts.sizes.numbers(self.layers, self.intermediate, self.hidden),
            None => self.layers * 3 * self.hidden * self.intermediate,
        };
        let embeddings = self.vocab * self.hidden * if self.tied_embeddings { 1 } else { 2 };
        self.layers * (attention + 2 * self.hidden) + mlps + embeddings + self.hidden
    }
}

impl Raw {
    /// Rejects what this program does not compute.
    fn check(&self, family: &Family) -> std::result::Result<(), String> {
        let (name, stated, known): (_, _, &[&str]) = match family.gate {
            Gate::GeluTanh => ("hidden_activation", &self.hidden_activation, &["gelu_pytorch_tanh"]),
            Gate::Silu | Gate::ClampedSilu { .. } => ("hidden_act", &self.hidden_act, &["silu", "swish"]),
        };
        if let Some(activation) = stated.as_deref()
            && !known.contains(&activation)
        {
            return Err(format!("{name} `{activation}` is not supported; `{}` is", known[0]));
        }
        if self.attn_logit_softcapping.or(self.final_logit_softcapping).is_some() {
            return Err("soft-capped logits are not supported".to_owned());
        }
        if self.use_bidirectional_attention == Some(true) {
            return Err("use_bidirectional_attention is not supported: rows see those before them".to_owned());
        }
        if self.query_pre_attn_scalar.is_some_and(|scalar| !(scalar.is_finite() && scalar > 0.0)) {
            return Err(format!("query_pre_attn_scalar {:?}: must be a positive number", self.query_pre_attn_scalar));
        }
        match self.swiglu_limit {
            Some(limit) if !(limit.is_finite() && limit > 0.0) => {
                Err(format!("swiglu_limit {limit}: must be a positive number"))
            }
            _ => Ok(()),
        }
    }

    fn windows(&self, rule: Window) -> std::result::Result<Option<Windows>, String> {
        let stated = windows::Stated {
            tokens: self.sliding_window.as_ref(),
            used: self.use_sliding_window,
            first_layer: self.max_window_layers,
            pattern: self.sliding_window_pattern,
            layer_types: self.layer_types.as_deref(),
            layers: self.num_hidden_layers,
        };
        stated.windows(rule)
    }

    /// The rotary settings of layers without a window, and the base of those with one if it is
    /// another.
    fn rope(&self, family: &Family) -> std::result::Result<(serde_json::Value, Option<f64>), String> {
        let merged = rope_config::merged(&self.rope_scaling, &self.rope_parameters);
        if !matches!(family.window, Window::Alternating { two_ropes: true, .. }) {
            return match family.sinks && merged["rope_type"].is_null() {
                true => Err("rope_scaling is missing: the YaRN of this family".to_owned()),
                false => Ok((merged, None)),
            };
        }
        let by_layer = |kind: &str| rope_config::merged(&serde_json::Value::Null, &self.rope_parameters[kind]);
        let (all, window) = (by_layer("full_attention"), by_layer("sliding_attention"));
        if window["rope_type"].as_str().is_some_and(|kind| kind != "default") {
            return Err(format!("rope_type {} in layers with a window is not supported", window["rope_type"]));
        }
        let theta = window["rope_theta"].as_f64().or(self.rope_local_base_freq).unwrap_or(10_000.0);
        let is_by_layer = all.as_object().is_some_and(|fields| !fields.is_empty());
        Ok((if is_by_layer { all } else { merged }, Some(theta)))
    }

    fn into_config(self, family: &Family) -> std::result::Result<Config, String> {
        let head_dim = self.head_dim.or(family.head_dim);
        let head_dim = head_dim.unwrap_or_else(|| self.hidden_size / self.num_attention_heads.max(1));
        let (rope, window_rope_theta) = &self.rope(family)?;
        let theta = rope["rope_theta"].as_f64().or(self.rope_theta).unwrap_or(10_000.0);
        let partial = rope["partial_rotary_factor"].as_f64().or(self.partial_rotary_factor);
        let partial = partial.unwrap_or(family.rotating);
        let rope_scaling = rope_config::scaling(rope, self.max_position_embeddings)?;
        let windows = self.windows(family.window)?;
        let gate = match (family.gate, self.swiglu_limit) {
            (Gate::ClampedSilu { .. }, Some(limit)) => Gate::ClampedSilu { limit },
            (gate, _) => gate,
        };
        let query_growth = match family.grows {
            true => rope_config::query_growth(rope, self.max_position_embeddings)?,
            false => None,
        };
        Ok(Config {
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            experts: None,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim,
            rotary_dims: (head_dim as f64 * partial) as usize,
            pairing: family.pairing,
            rope_theta: theta,
            max_positions: rope_config::positions(&rope_scaling, self.max_position_embeddings),
            rope_scaling,
            rope_axes: None,
            window_rope_theta: *window_rope_theta,
            query_growth,
            norm_eps: self.rms_norm_eps,
            tied_embeddings: self.tie_word_embeddings,
            qkv_bias: family.qkv_bias.is_there(self.attention_bias),
            output_bias: family.output_bias.is_there(self.attention_bias),
            mlp_bias: family.mlp_bias.is_there(self.mlp_bias),
            qk_norm: family.qk_norm.is_there(self.use_qk_norm),
            fused_gate_up: family.fused_gate_up,
            output_norms: family.output_norms,
            gate,
            scaled_embedding: family.scaled_embedding,
            query_scalar: self.query_pre_attn_scalar,
            sinks: family.sinks,
            windows,
            vision: None,
            bos: token_ids(&self.bos_token_id).first().copied(),
            eos: token_ids(&self.eos_token_id),
            quantisation: Quantisation::stated(&self.quantization_config, family.packed_experts)?,
            architecture: family.name.to_owned(),
        })
    }
}

/// The preprocessing that a model folder states. Its family's published models give the fields that
/// it leaves out.
fn preprocessing_of(folder: &Path, vision: &VisionConfig) -> Result<Preprocessing> {
    let sizes = Sizes { patch: vision.patch, merge: vision.merge, frames: vision.frames };
    let mut found: Option<Preprocessing> = None;
    for (path, field) in preprocessing::files(folder) {
        if !path.exists() {
            continue;
        }
        let bad = |what: String| Error::Config { path: path.clone(), what };
        let value: serde_json::Value = serde_json::from_str(&read(&path)?).map_err(|error| bad(error.to_string()))?;
        let object = match field {
            Some(field) if value[field].is_null() => continue,
            Some(field) => &value[field],
            None => &value,
        };
        let of_file = Preprocessing::of(object, vision.preprocessing, sizes).map_err(bad)?;
        if found.is_some_and(|before| before != of_file) {
            return Err(bad("it and preprocessor_config.json contradict each other".to_owned()));
        }
        found = Some(of_file);
    }
    Ok(found.unwrap_or(vision.preprocessing))
}

/// A config with the family's own values for missing fields.
fn with_defaults(mut value: serde_json::Value, defaults: &str) -> serde_json::Value {
    if defaults.is_empty() {
        return value;
    }
    let defaults: serde_json::Value = serde_json::from_str(defaults).expect("a family's defaults are JSON");
    if let (Some(fields), Some(defaults)) = (value.as_object_mut(), defaults.as_object()) {
        for (name, default) in defaults {
            fields.entry(name).or_insert_with(|| default.clone());
        }
    }
    value
}

fn family(value: &serde_json::Value, path: &Path) -> Result<&'static Family> {
    let named = value["architectures"][0].as_str();
    let by_type = || {
        let kind = value["model_type"].as_str()?;
        Some(families::of_type(kind).map_or(kind, |family| family.name))
    };
    let found = named.or_else(by_type).unwrap_or("none: neither `architectures` nor `model_type` is there");
    if let Some(family) = families::named(found) {
        return Ok(family);
    }
    let found: String = found.chars().filter(|letter| !letter.is_control()).take(80).collect();
    let supported: Vec<&str> = FAMILIES.iter().map(|family| family.name).chain(families::WITH_PICTURES).collect();
    let supported = supported.into_iter().chain(families::WITH_TOWERS.iter().map(|family| family.name));
    let supported: Vec<&str> = supported.collect();
    let supported = supported.join(", ");
    Err(Error::Architecture { path: path.to_owned(), found: found.to_owned(), supported })
}

/// One id or a list of ids.
fn token_ids(value: &serde_json::Value) -> Vec<u32> {
    let one = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        serde_json::Value::Array(list) => list.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}

/// Rejects different values in two fields of the same meaning.
fn agree(value: &serde_json::Value, one: &str, other: &str) -> std::result::Result<(), String> {
    match (&value[one], &value[other]) {
        (serde_json::Value::Null, _) | (_, serde_json::Value::Null) => Ok(()),
        (first, second) if first == second => Ok(()),
        (first, second) => Err(format!("{one} {first} and {other} {second} contradict each other")),
    }
}

/// Maximum size of a text file in a model folder, in bytes.
const TEXT_BYTES: u64 = 64 << 20;

/// The text of a file in a model folder. Its author is not trusted: it must be a regular file of a
/// bounded length.
pub(super) fn read(path: &Path) -> Result<String> {
    let text = tributary_system::file::regular_text(path, TEXT_BYTES);
    text.map_err(|error| Error::File { path: path.to_owned(), cause: error.to_string() })
}

#[cfg(test)]
mod tests;
