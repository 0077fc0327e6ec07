//! The decoder families: a row says how a family differs from a Llama. A new family is a new row
//! here.

use tributary_kernels::Pairing;

/// A family, by what tells its decoders from others.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name in `architectures`.
    pub name: &'static str,
    /// Width of a head where a config is silent; hidden / heads where there is none.
    pub head_dim: Option<usize>,
    /// Share of a head that rotates where a config is silent.
    pub rotating: f64,
    /// Which dims form a rotating pair.
    pub pairing: Pairing,
    /// Whether a row may look back at some keys only.
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

/// When linear layers have a bias.
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
    /// Whether there is one, given what the config states.
    pub fn is_there(self, stated: Option<bool>) -> bool {
        match self {
            Bias::Always => true,
            Bias::Never => false,
            Bias::Stated => stated == Some(true),
        }
    }
}

/// When a sliding window is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Whatever a config says.
    Never,
    /// The window of the config, or Hugging Face's default where the config is silent.
    Always,
    /// If the config switches it on and has a layer that it is for.
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

/// A Llama whose config has a say in the bias of queries, keys and values alone.
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

/// The families that are supported.
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
