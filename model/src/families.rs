//! The decoder families: each row lists the differences of a family to Llama. A new family is a new
//! row here.

use tributary_kernels::Pairing;

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
    pub qkv_bias: Bias,
    /// Bias of the attention's output projection.
    pub output_bias: Bias,
    /// Bias of the MLP's projections.
    pub mlp_bias: Bias,
    /// Whether queries and keys are normalised per head before RoPE.
    pub qk_norm: bool,
    /// Whether the gate and up projections are one tensor, gate first.
    pub fused_gate_up: bool,
    /// Whether attention's and MLP's outputs are normalised before they are added.
    pub output_norms: bool,
}

/// The rule for a linear layer's bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// Whatever a config says.
    Always,
    /// Whatever a config says.
    Never,
    /// If a config says so.
    Stated,
}

impl Bias {
    /// Whether there is a bias, given the config's value.
    pub fn is_there(self, stated: Option<bool>) -> bool {
        match self {
            Bias::Always => true,
            Bias::Never => false,
            Bias::Stated => stated == Some(true),
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
}

const LLAMA: Family = Family {
    name: "LlamaForCausalLM",
    head_dim: None,
    rotating: 1.0,
    pairing: Pairing::Half,
    window: Window::Never,
    qkv_bias: Bias::Stated,
    output_bias: Bias::Stated,
    mlp_bias: Bias::Stated,
    qk_norm: false,
    fused_gate_up: false,
    output_norms: false,
};

/// A Llama whose config decides only on the bias of queries, keys and values.
const PLAIN: Family = Family { output_bias: Bias::Never, mlp_bias: Bias::Never, ..LLAMA };

const MISTRAL: Family = Family { name: "MistralForCausalLM", window: Window::Always, qkv_bias: Bias::Never, ..PLAIN };

const QWEN2: Family = Family { name: "Qwen2ForCausalLM", window: Window::Switched, qkv_bias: Bias::Always, ..PLAIN };

const QWEN3: Family = Family {
    name: "Qwen3ForCausalLM",
    head_dim: Some(128),
    window: Window::Switched,
    output_bias: Bias::Stated,
    qk_norm: true,
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
const GLM4: Family = Family { name: "Glm4ForCausalLM", output_norms: true, ..GLM };

/// The supported families.
pub static FAMILIES: [Family; 6] = [LLAMA, MISTRAL, QWEN2, QWEN3, GLM, GLM4];

/// The family of a name in `architectures`.
pub fn named(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The family of a `model_type`.
pub fn of_type(kind: &str) -> Option<&'static Family> {
    let stem =
        |family: &&Family| family.name.strip_suffix("ForCausalLM").is_some_and(|stem| stem.eq_ignore_ascii_case(kind));
    FAMILIES.iter().find(stem)
}
