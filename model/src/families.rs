//! The decoder families: each row lists the differences of a family to Llama. A new family is a new
//! row here.

use tributary_kernels::Pairing;

use crate::experts::Scores;

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
    /// Whether attention's and MLP's outputs are normalised before they are added.
    pub output_norms: bool,
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
    output_norms: false,
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
const GLM4: Family = Family { name: "Glm4ForCausalLM", output_norms: true, ..GLM };

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

/// The supported families.
pub static FAMILIES: [Family; 9] = [LLAMA, MISTRAL, MINISTRAL3, QWEN2, QWEN3, QWEN3_MOE, GLM, GLM4, GLM4_MOE];

/// The family of a name in `architectures`.
pub fn named(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The family of a `model_type`.
pub fn of_type(kind: &str) -> Option<&'static Family> {
    let kind = kind.replace('_', "");
    let stem =
        |family: &&Family| family.name.strip_suffix("ForCausalLM").is_some_and(|stem| stem.eq_ignore_ascii_case(&kind));
    FAMILIES.iter().find(stem)
}

/// Families of text and pictures whose text part is one of [`FAMILIES`], by their names in
/// `architectures`. The part's config is the field `text_config`; pictures are not read.
pub static WITH_PICTURES: [&str; 1] = ["Mistral3ForConditionalGeneration"];
