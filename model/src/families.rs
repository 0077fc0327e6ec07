//! The decoder families: each row lists the differences of a family to Llama. A new family is a new
//! row here.

use tributary_kernels::{Gate, Pairing};

use crate::experts::Scores;

/// Norms of the outputs of attention and MLP, before these are added to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputNorms {
    /// GLM-4-0414's, by its names.
    Glm,
    /// Gemma's, by its names. All of its norms multiply by 1 + w, of which a file has w.
    Gemma,
}

/// The properties in which a family differs from others.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name in `architectures`.
    pub name: &'static str,
    /// Width of a head if a config has none; if absent here too, hidden / heads.
    pub head_dim: Option<usize>,
    /// Share of a head that rotates, if a config has none.
    pub rotating: f64,
    /// Pairing of the rotating dims.
    pub pairing: Pairing,
    /// The rule for its sliding window.
    pub window: Window,
    /// Bias of the projections to queries, keys and values.
    pub qkv_bias: Part,
    /// Bias of the attention's output projection.
    pub output_bias: Part,
    /// Bias of the MLP's projections.
    pub mlp_bias: Part,
    /// Whether queries and keys are normalised per head before RoPE.
    pub qk_norm: Part,
    /// Whether the gate and up projections are one tensor, gate first.
    pub fused_gate_up: bool,
    /// Norms of the outputs of attention and MLP.
    pub output_norms: Option<OutputNorms>,
    /// The MLP's activation.
    pub gate: Gate,
    /// Whether rows of the embedding are multiplied by √hidden.
    pub scaled_embedding: bool,
    /// Whether each query head has a learned sink.
    pub sinks: bool,
    /// Whether experts are stored in one tensor a layer, which may be packed in MXFP4.
    pub packed_experts: bool,
    /// Values of fields that a config may leave out, as JSON.
    pub defaults: &'static str,
    /// How the router of its experts chooses, if it has experts.
    pub router: Option<Scores>,
    /// Whether its queries grow with their position, if a config says so.
    pub grows: bool,
}

/// The rule for a bias or a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// There, whatever a config says.
    Always,
    /// Absent, whatever a config says.
    Never,
    /// If a config says so.
    Stated,
}

impl Part {
    /// Whether it is there, given the config's value.
    pub fn is_there(self, stated: Option<bool>) -> bool {
        match self {
            Part::Always => true,
            Part::Never => false,
            Part::Stated => stated == Some(true),
        }
    }
}

/// The rule for a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Whatever a config says.
    Never,
    /// The window of the config, or Hugging Face's default if it has none.
    Always,
    /// If the config switches it on and applies it to a layer.
    Switched,
    /// If the config switches it on, in every layer.
    SwitchedInAll,
    /// The window of the config, if it has one.
    Stated,
    /// The config's `layer_types` decide, or else a pattern.
    Alternating {
        /// Of this number of layers the last has no window.
        pattern: usize,
        /// The window if a config has none, in tokens.
        tokens: usize,
        /// Whether layers with a window have rotary frequencies of their own.
        two_ropes: bool,
    },
}

const LLAMA: Family = Family {
    name: "LlamaForCausalLM",
    head_dim: None,
    rotating: 1.0,
    pairing: Pairing::Half,
    window: Window::Never,
    qkv_bias: Part::Stated,
    output_bias: Part::Stated,
    mlp_bias: Part::Stated,
    qk_norm: Part::Never,
    fused_gate_up: false,
    output_norms: None,
    gate: Gate::Silu,
    scaled_embedding: false,
    sinks: false,
    packed_experts: false,
    defaults: "",
    router: None,
    grows: false,
};

/// A Llama whose config decides only on the bias of queries, keys and values.
const PLAIN: Family = Family { output_bias: Part::Never, mlp_bias: Part::Never, ..LLAMA };

const MISTRAL: Family = Family { name: "MistralForCausalLM", window: Window::Always, qkv_bias: Part::Never, ..PLAIN };

const MINISTRAL3: Family =
    Family { name: "Ministral3ForCausalLM", head_dim: Some(128), window: Window::Stated, grows: true, ..MISTRAL };

const QWEN2: Family = Family { name: "Qwen2ForCausalLM", window: Window::Switched, qkv_bias: Part::Always, ..PLAIN };

const QWEN3: Family = Family {
    name: "Qwen3ForCausalLM",
    head_dim: Some(128),
    window: Window::Switched,
    output_bias: Part::Stated,
    qk_norm: Part::Always,
    ..PLAIN
};

const GLM: Family = Family {
    name: "GlmForCausalLM",
    head_dim: Some(128),
    rotating: 0.5,
    pairing: Pairing::Interleaved,
    fused_gate_up: true,
    ..PLAIN
};

/// GLM-4-0414.
const GLM4: Family = Family { name: "Glm4ForCausalLM", output_norms: Some(OutputNorms::Glm), ..GLM };

const QWEN3_MOE: Family = Family {
    name: "Qwen3MoeForCausalLM",
    head_dim: None,
    window: Window::SwitchedInAll,
    router: Some(Scores::Softmax),
    ..QWEN3
};

/// GLM-4.5 to 4.7. Unlike its dense relatives it rotates halves.
const GLM4_MOE: Family =
    Family { name: "Glm4MoeForCausalLM", rotating: 0.5, qk_norm: Part::Stated, router: Some(Scores::Sigmoid), ..PLAIN };

/// Gemma 3, its text part included. (Gemma Team 2025, "Gemma 3 Technical Report", section 2.)
const GEMMA3: Family = Family {
    name: "Gemma3ForCausalLM",
    head_dim: Some(256),
    window: Window::Alternating { pattern: 6, tokens: 4096, two_ropes: true },
    output_bias: Part::Stated,
    qk_norm: Part::Always,
    output_norms: Some(OutputNorms::Gemma),
    gate: Gate::GeluTanh,
    scaled_embedding: true,
    defaults: r#"{"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 131072,
        "rope_theta": 1e6, "query_pre_attn_scalar": 256, "tie_word_embeddings": true, "bos_token_id": 2,
        "eos_token_id": 1}"#,
    ..PLAIN
};

/// gpt-oss (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2).
const GPT_OSS: Family = Family {
    name: "GptOssForCausalLM",
    head_dim: Some(64),
    window: Window::Alternating { pattern: 2, tokens: 128, two_ropes: false },
    output_bias: Part::Stated,
    gate: Gate::ClampedSilu { limit: 7.0 },
    sinks: true,
    packed_experts: true,
    router: Some(Scores::Biased),
    defaults: r#"{"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
        "rope_theta": 150000, "num_local_experts": 128, "num_experts_per_tok": 4, "attention_bias": true,
        "swiglu_limit": 7.0}"#,
    ..PLAIN
};

/// The supported families.
pub static FAMILIES: [Family; 11] =
    [LLAMA, MISTRAL, MINISTRAL3, QWEN2, QWEN3, QWEN3_MOE, GLM, GLM4, GLM4_MOE, GEMMA3, GPT_OSS];

/// The family of a name in `architectures`.
pub fn named(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The family of a `model_type`.
pub fn of_type(kind: &str) -> Option<&'static Family> {
    let kind = kind.replace('_', "");
    let kind = kind.strip_suffix("text").unwrap_or(&kind);
    let stem =
        |family: &&Family| family.name.strip_suffix("ForCausalLM").is_some_and(|stem| stem.eq_ignore_ascii_case(kind));
    FAMILIES.iter().find(stem)
}

/// Families of text and pictures whose text part is one of [`FAMILIES`], by their names in
/// `architectures`. The part's config is the field `text_config`; their pictures are not read.
pub static WITH_PICTURES: [&str; 2] = ["Mistral3ForConditionalGeneration", "Gemma3ForConditionalGeneration"];

/// A family of text and pictures whose pictures are read too.
#[derive(Debug, Clone, Copy)]
pub struct WithTower {
    /// Its name in `architectures`.
    pub name: &'static str,
    /// The family of its text part, whose config is the field `text_config`, or stands on top.
    pub text: &'static str,
    /// Its tower.
    pub tower: Towers,
}

/// The vision towers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towers {
    /// Qwen3-VL's. (Qwen Team 2025, "Qwen3-VL Technical Report", section 2.)
    Qwen3,
    /// Qwen2.5-VL's. (Bai et al. 2025, "Qwen2.5-VL Technical Report", section 2.1.)
    Qwen25,
}

/// The supported families of text and pictures.
pub static WITH_TOWERS: [WithTower; 2] = [
    WithTower { name: "Qwen3VLForConditionalGeneration", text: QWEN3.name, tower: Towers::Qwen3 },
    WithTower { name: "Qwen2_5_VLForConditionalGeneration", text: QWEN2.name, tower: Towers::Qwen25 },
];

/// The family of text and pictures of a name in `architectures`.
pub fn with_tower(name: &str) -> Option<&'static WithTower> {
    WITH_TOWERS.iter().find(|family| family.name == name)
}
