//! Prefill methods and their parameters.

/// A way to fill the cache of a long prompt.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Method {
    /// Exact: the whole prompt on one rank (the last), the others idle.
    Full,
    /// Exact: zigzag ring attention, keys and values point to point.
    Ring,
    /// Exact: contiguous split, every layer's keys and values gathered on every rank.
    AllGather {
        /// KV heads gathered at a time; all at once where absent.
        heads_per_gather: Option<usize>,
    },
    /// Naive reuse: chunks as they are, nothing recomputed.
    None,
    /// Recomputes rows drawn at random.
    Random {
        /// Seed of the draw.
        seed: u64,
    },
    /// Recomputes the first rows of every chunk but the first (EPIC's LegoLink).
    Epic {
        /// Rows a chunk; the budget divided evenly where absent.
        per_chunk: Option<usize>,
    },
    /// Recomputes what the query attends to in some layers.
    InfoFlow(InfoFlow),
    /// Recomputes what the query attends to in all layers, normalised over the context.
    ProphetKv {
        /// RoPE positions while scoring.
        layout: Layout,
    },
    /// Two hops: what the query attends to, and what that attends to after a provisional recompute.
    Relay {
        /// RoPE positions while scoring.
        layout: Layout,
    },
}

/// InfoFlow's parameters.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct InfoFlow {
    /// How attention becomes a score.
    pub score: Score,
    /// First scoring layer and the one after the last.
    pub layers: (usize, usize),
    /// RoPE positions while scoring.
    pub layout: Layout,
}

/// How the attention a context row receives from the query's rows becomes its score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Score {
    /// Euclidean norm over the query's rows.
    Norm,
    /// Sum over the query's rows.
    Mass,
}

/// RoPE positions while scoring; prefix P rows, context T rows, longest chunk C. Causal order is always the sequence's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Layout {
    /// As in the full sequence.
    Global,
    /// Every chunk from P, the query from P + C.
    HlHp,
    /// Every chunk from P, the query from P + T.
    HlTp,
    /// Every chunk ends at P + T − 1, the query from P + T.
    TlTp,
}

/// How the scores of a chunk's rows become the chunk's importance, by which chunks are reordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Importance {
    /// Sum of its rows' scores.
    Mass,
    /// Its share of a global top-n, over its length.
    Selected,
}

/// What ranks send each other while selected rows are recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Exchange {
    /// All keys and values on every rank, gathered during chunk prefill; then fresh rows only.
    Replicate,
    /// Queries to the keys, partial results back.
    PassQ,
    /// Fresh rows only; a row sees its own rank's context and the others' selected rows. Not exact.
    Selected,
}

impl Method {
    /// The name on the command line and in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Method::Full => "full",
            Method::Ring => "ring",
            Method::AllGather { .. } => "all-gather",
            Method::None => "none",
            Method::Random { .. } => "random",
            Method::Epic { .. } => "epic",
            Method::InfoFlow(_) => "infoflow",
            Method::ProphetKv { .. } => "prophetkv",
            Method::Relay { .. } => "relay",
        }
    }

    /// Every name, for messages.
    pub const NAMES: [&'static str; 9] =
        ["full", "ring", "all-gather", "none", "random", "epic", "infoflow", "prophetkv", "relay"];

    /// Whether the result equals a full prefill but for rounding.
    pub fn is_exact(&self) -> bool {
        matches!(self, Method::Full | Method::Ring | Method::AllGather { .. })
    }

    /// Whether selection asks the query.
    pub fn probes_query(&self) -> bool {
        matches!(self, Method::InfoFlow(_) | Method::ProphetKv { .. } | Method::Relay { .. })
    }

    /// RoPE positions while scoring, for methods that probe the query.
    pub fn layout(&self) -> Option<Layout> {
        match self {
            Method::InfoFlow(InfoFlow { layout, .. }) | Method::ProphetKv { layout } | Method::Relay { layout } => {
                Some(*layout)
            }
            _ => None,
        }
    }
}

macro_rules! names {
    ($type:ty, $($variant:path => $name:literal),+) => {
        impl $type {
            /// The name on the command line and in reports.
            pub fn name(self) -> &'static str {
                match self { $($variant => $name),+ }
            }

            /// Every name, for messages.
            pub const NAMES: &'static [&'static str] = &[$($name),+];
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                match name {
                    $($name => Ok($variant),)+
                    _ => Err(format!("`{name}` is none of {}", Self::NAMES.join(", "))),
                }
            }
        }
    };
}

names!(Score, Score::Norm => "norm", Score::Mass => "mass");
names!(Layout, Layout::Global => "global", Layout::HlHp => "hl-hp", Layout::HlTp => "hl-tp", Layout::TlTp => "tl-tp");
names!(Importance, Importance::Mass => "mass", Importance::Selected => "selected");
names!(Exchange, Exchange::Replicate => "replicate", Exchange::PassQ => "pass-q", Exchange::Selected => "selected");
