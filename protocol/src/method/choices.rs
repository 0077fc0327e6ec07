//! Choices that methods and plans share, with the names that users write.

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
