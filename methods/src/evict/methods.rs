//! The eviction methods and their descriptors: nothing outside this file matches on a method.

/// A way to choose the rows that decoding keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Eviction {
    /// The first rows and the most recent ones, at contiguous positions.
    StreamingLlm,
    /// Rows drawn at random in each layer and KV head.
    Random,
    /// The rows that the window attends to, and the window.
    SnapKv,
    /// As SnapKV, with fewer rows in later layers.
    PyramidKv,
    /// The rows that the prompt's last row attends to, the mean over all heads.
    Tova,
    /// The rows that all rows attend to, and the most recent ones.
    H2o,
    /// The rows attended to by tokens that SnapKV's cache generates and that are then discarded.
    Laq,
    /// The rows attended to by tokens that a small draft model writes and that are then discarded.
    SpecKv,
    /// The rows attended to by trained rows after the prompt.
    LookaheadKv,
    /// The rows attended to by the answer that the whole cache generates.
    Ideal,
}

impl Eviction {
    /// The method's descriptor.
    pub fn descriptor(self) -> &'static EvictionDescriptor {
        entry(self)
    }
}

/// Evidence that the choice of rows follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionEvidence {
    /// Places of the rows alone.
    Places,
    /// Numbers drawn from a seed.
    Draw,
    /// Attention of the window's rows.
    Window,
    /// Attention of the prompt's last row.
    LastRow,
    /// Attention of all rows of the prompt.
    AllRows,
    /// Attention of tokens generated from the rows that the window's attention keeps.
    PseudoTokens,
    /// Attention of the answer's own tokens, generated from the whole cache.
    OwnTokens,
    /// Attention of tokens that the plan's draft model writes after the prompt.
    DraftTokens,
    /// Attention of the plan's look-ahead.
    LookAhead,
}

/// Distribution of the budget over layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerBudgets {
    /// The same number of rows in every layer.
    Even,
    /// Fewer rows in later layers.
    Falling,
}

/// Descriptor of an eviction method.
#[derive(Debug)]
pub struct EvictionDescriptor {
    /// Its name.
    pub name: &'static str,
    /// Rows that it keeps, in a few words.
    pub summary: &'static str,
    /// The paper.
    pub source: &'static str,
    /// The variant.
    pub method: Eviction,
    /// Evidence of the choice.
    pub evidence: EvictionEvidence,
    /// Distribution of the budget over layers.
    pub budgets: LayerBudgets,
    /// Whether scores are pooled along the rows.
    pub pools: bool,
    /// Whether all KV heads of a layer keep the same rows.
    pub heads_together: bool,
    /// Whether kept keys get contiguous positions from 0 on, followed by generated rows. Otherwise
    /// each keeps its own.
    pub contiguous: bool,
}

const BASE: EvictionDescriptor = EvictionDescriptor {
    name: "",
    summary: "",
    source: "",
    method: Eviction::Random,
    evidence: EvictionEvidence::Draw,
    budgets: LayerBudgets::Even,
    pools: false,
    heads_together: false,
    contiguous: false,
};

/// Every eviction method, in the order of help texts and tables.
pub static EVICTIONS: [&EvictionDescriptor; 10] =
    [&SNAP_KV, &PYRAMID_KV, &TOVA, &H2O, &STREAMING_LLM, &RANDOM, &LAQ, &SPEC_KV, &LOOKAHEAD_KV, &IDEAL];

static SNAP_KV: EvictionDescriptor = EvictionDescriptor {
    name: "snapkv",
    summary: "tokens that the prompt's last tokens attend to, max-pooled, and those last tokens",
    source: "SnapKV (Li et al. 2024)",
    method: Eviction::SnapKv,
    evidence: EvictionEvidence::Window,
    pools: true,
    ..BASE
};

static PYRAMID_KV: EvictionDescriptor = EvictionDescriptor {
    name: "pyramidkv",
    summary: "as snapkv, with budgets that fall from layer to layer",
    source: "PyramidKV (Cai et al. 2024)",
    method: Eviction::PyramidKv,
    budgets: LayerBudgets::Falling,
    ..SNAP_KV
};

static TOVA: EvictionDescriptor = EvictionDescriptor {
    name: "tova",
    summary: "tokens that the prompt's last token attends to, the same in all heads of a layer",
    source: "TOVA (Oren et al. 2024)",
    method: Eviction::Tova,
    evidence: EvictionEvidence::LastRow,
    heads_together: true,
    ..BASE
};

static H2O: EvictionDescriptor = EvictionDescriptor {
    name: "h2o",
    summary: "tokens that all prompt tokens attend to most, and as many of the most recent tokens",
    source: "H2O (Zhang et al. 2023)",
    method: Eviction::H2o,
    evidence: EvictionEvidence::AllRows,
    ..BASE
};

static STREAMING_LLM: EvictionDescriptor = EvictionDescriptor {
    name: "streamingllm",
    summary: "the first 4 tokens and the most recent ones, at contiguous positions",
    source: "StreamingLLM (Xiao et al. 2024)",
    method: Eviction::StreamingLlm,
    evidence: EvictionEvidence::Places,
    heads_together: true,
    contiguous: true,
    ..BASE
};

static RANDOM: EvictionDescriptor = EvictionDescriptor {
    name: "random",
    summary: "tokens drawn at random in each layer and KV head, the control for the others",
    source: "-",
    ..BASE
};

static LAQ: EvictionDescriptor = EvictionDescriptor {
    name: "laq",
    summary: "prompt tokens that 32 tokens attend to, max-pooled; these are generated first on snapkv's cache",
    source: "LAQ (Wang et al. 2025)",
    method: Eviction::Laq,
    evidence: EvictionEvidence::PseudoTokens,
    pools: true,
    ..BASE
};

static SPEC_KV: EvictionDescriptor = EvictionDescriptor {
    name: "speckv",
    summary: "prompt tokens that 32 tokens of a small draft model attend to, max-pooled",
    source: "SpecKV (Galim et al. 2025)",
    method: Eviction::SpecKv,
    evidence: EvictionEvidence::DraftTokens,
    pools: true,
    ..BASE
};

static LOOKAHEAD_KV: EvictionDescriptor = EvictionDescriptor {
    name: "lookahead",
    summary: "tokens that trained vectors after the prompt attend to",
    source: "LookaheadKV",
    method: Eviction::LookaheadKv,
    evidence: EvictionEvidence::LookAhead,
    ..BASE
};

static IDEAL: EvictionDescriptor = EvictionDescriptor {
    name: "ideal",
    summary: "tokens that the answer itself attends to, generated first on the whole cache; for studies",
    source: "-",
    method: Eviction::Ideal,
    evidence: EvictionEvidence::OwnTokens,
    ..BASE
};

/// The entry of a method.
fn entry(method: Eviction) -> &'static EvictionDescriptor {
    match method {
        Eviction::StreamingLlm => &STREAMING_LLM,
        Eviction::Random => &RANDOM,
        Eviction::SnapKv => &SNAP_KV,
        Eviction::PyramidKv => &PYRAMID_KV,
        Eviction::Tova => &TOVA,
        Eviction::H2o => &H2O,
        Eviction::Laq => &LAQ,
        Eviction::SpecKv => &SPEC_KV,
        Eviction::LookaheadKv => &LOOKAHEAD_KV,
        Eviction::Ideal => &IDEAL,
    }
}

impl EvictionDescriptor {
    /// The method of that name.
    pub fn find(name: &str) -> Option<&'static EvictionDescriptor> {
        EVICTIONS.into_iter().find(|method| method.name == name)
    }

    /// The names of all methods, with commas between them.
    pub fn names() -> String {
        EVICTIONS.map(|method| method.name).join(", ")
    }

    /// Whether it can compress a chunk that is prefilled alone: every layer keeps the same number
    /// of rows, and the chunk itself holds the evidence.
    pub fn compresses_chunks(&self) -> bool {
        use EvictionEvidence::{AllRows, Draw, LastRow, Places, Window};

        let in_chunk = matches!(self.evidence, Places | Draw | Window | LastRow | AllRows);
        in_chunk && self.budgets == LayerBudgets::Even
    }

    /// The names of the methods that can compress a chunk, with commas between them.
    pub fn names_for_chunks() -> String {
        let able = EVICTIONS.iter().filter(|method| method.compresses_chunks());
        able.map(|method| method.name).collect::<Vec<_>>().join(", ")
    }

    /// Whether the choice needs rows that attend to the filled cache.
    pub fn looks(&self) -> bool {
        !matches!(self.evidence, EvictionEvidence::Places | EvictionEvidence::Draw)
    }
}
