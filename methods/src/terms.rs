//! Choices that methods and plans share, with the names that users write.

use std::collections::HashSet;
use std::ops::Range;

/// The way in which the attention a context row receives from the query's rows becomes its score.
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

/// The way in which the scores of a chunk's rows become the chunk's importance, by which chunks are reordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Importance {
    /// Sum of its rows' scores.
    Mass,
    /// Its share of a global top-n, over its length.
    Selected,
}

/// What another order of chunks is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum OrderFor {
    /// Rows are recomputed in it, and the query and what is generated read chunks in it.
    #[default]
    All,
    /// Rows are selected and recomputed in it; the query and what is generated read chunks in the request's own order.
    Selection,
}

/// The messages between ranks while selected rows are recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Exchange {
    /// All keys and values on every rank, gathered during chunk prefill; then fresh rows only.
    Replicate,
    /// Queries to the keys, partial results back.
    PassQ,
    /// Fresh rows only; a row sees its own rank's context and the others' selected rows. Not exact.
    Selected,
}

/// The cached tensor whose rows are compared with the rows they would be if they had seen the whole context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DriftOf {
    /// Values (the paper's).
    Values,
    /// Keys before RoPE.
    Keys,
}

/// The measurement of the drift of rows from their cached keys or values: rows run through the first layers at their global
/// positions, and their new keys or values are compared. With several layers ever fewer rows go on (CacheBlend's gradual filtering).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Drift {
    /// The tensor that is compared.
    pub of: DriftOf,
    /// The number of layers after the first in which it is compared: 1 or more.
    pub layers: usize,
    /// The way in which the difference becomes a score.
    pub score: DriftScore,
}

/// The way in which a row's difference from what is cached of it becomes its score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DriftScore {
    /// Its squared Euclidean norm.
    Squared,
    /// The sum of its absolute numbers, times the attention that all context rows pay to the row in the last layer that is compared.
    Attended,
}

impl Default for Drift {
    fn default() -> Self {
        Self { of: DriftOf::Values, layers: 1, score: DriftScore::Squared }
    }
}

impl Drift {
    /// The number of rows that go on after each of the layers. The last layer leaves `budget` rows; each layer before it leaves one more
    /// equal part of the budget than the next.
    pub fn left(&self, budget: usize) -> Vec<usize> {
        (1..=self.layers).map(|layer| budget + budget * (self.layers - layer) / self.layers).collect()
    }

    /// The rows that went on from each layer but the last, each list within the one before, as one list: those first that went on for
    /// longest.
    pub fn longest_first(lists: &[Vec<u32>]) -> Vec<u32> {
        let (mut rows, mut seen) = (Vec::new(), HashSet::new());
        for &row in lists.iter().rev().flatten() {
            if seen.insert(row) {
                rows.push(row);
            }
        }
        rows
    }

    /// The lists from which [`longest_first`](Self::longest_first) has made its one list.
    pub fn went_on<'a>(&self, budget: usize, longest_first: &'a [u32]) -> Vec<&'a [u32]> {
        assert!(self.layers > 0, "drift is measured in no layer");
        let counts = self.left(budget).into_iter().take(self.layers - 1);
        counts.map(|count| &longest_first[..count.min(longest_first.len())]).collect()
    }
}

/// The attention of the query to contexts that stand beside each other (APE, section 4): softmax at a temperature, merged with the rest by
/// a weighted log-sum-exp.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Ape {
    /// τ: what the scores of context rows are divided by. Above 0.
    pub temperature: f32,
    /// S: the factor, beside τ, of the context's log-sum-exp. Above 0.
    pub scale: f32,
}

impl Default for Ape {
    fn default() -> Self {
        Self { temperature: 0.9, scale: 0.9 }
    }
}

impl Ape {
    /// The factor of the context's log-sum-exp: S · τ.
    pub fn weight(self) -> f32 {
        self.scale * self.temperature
    }
}

/// What is kept of every document where the rest is dropped (SAM-KV), and how it is mixed with what is cached of it.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SamKv {
    /// The sizes of what is kept.
    pub variant: SamKvVariant,
    /// Blocks between a document's first and last rows that are kept: 1 or more.
    pub blocks: usize,
    /// θ: the share of what is fresh in keys and values; the rest is what is cached. From 0 to 1.
    pub theta: f32,
}

/// The sizes of what is kept of every document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SamKvVariant {
    /// 64 first rows, 128 last rows, blocks of 64.
    Large,
    /// 8 first rows, 16 last rows, blocks of 8.
    Small,
}

impl Default for SamKv {
    fn default() -> Self {
        Self { variant: SamKvVariant::Large, blocks: 2, theta: 0.9 }
    }
}

impl SamKv {
    /// First rows, last rows, rows of a block.
    fn sizes(&self) -> (usize, usize, usize) {
        match self.variant {
            SamKvVariant::Large => (64, 128, 64),
            SamKvVariant::Small => (8, 16, 8),
        }
    }

    /// The first and the last rows of a document of so many rows, which are always kept.
    pub fn always_of(&self, length: usize) -> [Range<usize>; 2] {
        let (sinks, local, _) = self.sizes();
        let head = sinks.min(length);
        [0..head, head.max(length.saturating_sub(local))..length]
    }

    /// The blocks between them; the last one may be shorter.
    pub fn blocks_of(&self, length: usize) -> Vec<Range<usize>> {
        let ([head, tail], (_, _, block)) = (self.always_of(length), self.sizes());
        (head.end..tail.start).step_by(block).map(|from| from..(from + block).min(tail.start)).collect()
    }

    /// Rows that are kept of a document of so many, at most.
    pub fn kept_of(&self, length: usize) -> usize {
        let ([head, tail], (_, _, block)) = (self.always_of(length), self.sizes());
        head.len() + tail.len() + (tail.start - head.end).min(self.blocks.saturating_mul(block))
    }
}

/// The keys that blocks of a sequence see beside their own (APB): those of an anchor, and some that the blocks before pass on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Passing {
    /// Rows at the beginning of the sequence that every block sees; a quarter of a block's where absent.
    pub anchor_tokens: Option<usize>,
    /// Rows that each block passes on in each layer; an eighth of a block's where absent.
    pub passing_tokens: Option<usize>,
}

/// The parameters by which dependences are followed.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Trace {
    /// α: a row depends on a row of another chunk where its reading of that row, less the reading the other way, is this much or more.
    pub alpha: f32,
    /// g: the share of the largest relevance that a row must have to count.
    pub share: f32,
    /// γ: the share of its relevance that a row hands on to those it depends on. At most 1.
    pub decay: f32,
    /// Free probes at most, the first included.
    pub rounds: usize,
    /// Whether chunks stay in the request's order whatever is found, as the parts of one long document must.
    pub keep_order: bool,
    /// The heads whose attention counts.
    pub heads: TraceHeads,
}

/// The heads whose attention is a row's reading of another row, in free probes: its mean over them.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum TraceHeads {
    /// All heads of all layers.
    #[default]
    Mean,
    /// For each row this share of all heads of all layers: those that pay one row of another chunk most. Above 0 and at most 1.
    Sharpest(f32),
}

impl From<Option<f32>> for TraceHeads {
    /// From the share of the sharpest heads, or none for all heads.
    fn from(sharpest: Option<f32>) -> Self {
        sharpest.map_or(TraceHeads::Mean, TraceHeads::Sharpest)
    }
}

impl TraceHeads {
    /// The share of `sharpest` where none is said.
    pub const USUAL_SHARE: f32 = 0.25;

    /// Of so many heads in all layers, the number that counts for a row; none where all count and nothing is chosen.
    pub fn count(self, heads: usize) -> Option<usize> {
        match self {
            TraceHeads::Mean => None,
            TraceHeads::Sharpest(share) => Some(((f64::from(share) * heads as f64).round() as usize).clamp(1, heads)),
        }
    }
}

impl std::fmt::Display for TraceHeads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceHeads::Mean => f.write_str("mean"),
            TraceHeads::Sharpest(share) => write!(f, "sharpest:{share}"),
        }
    }
}

impl std::str::FromStr for TraceHeads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = match text.split_once(':') {
            None if text == "mean" => return Ok(TraceHeads::Mean),
            None if text == "sharpest" => Some(Self::USUAL_SHARE),
            Some(("sharpest", share)) => share.parse().ok(),
            _ => None,
        };
        let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
        let wrong = || format!("`{text}` is neither mean nor sharpest:SHARE with a share above 0 and at most 1");
        share.map(TraceHeads::Sharpest).ok_or_else(wrong)
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self { alpha: 0.18, share: 0.4, decay: 0.9, rounds: 4, keep_order: false, heads: TraceHeads::Mean }
    }
}

impl Trace {
    /// Rows that the first free probe measures, and each later one at most.
    pub fn rows_of_round(budget: usize) -> usize {
        budget / 3
    }

    /// Rows that all free probes together measure at most.
    pub fn rows_of_all(budget: usize) -> usize {
        budget / 2
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
names!(OrderFor, OrderFor::All => "all", OrderFor::Selection => "selection");
names!(DriftOf, DriftOf::Values => "values", DriftOf::Keys => "keys");
names!(SamKvVariant, SamKvVariant::Large => "large", SamKvVariant::Small => "small");
names!(Importance, Importance::Mass => "mass", Importance::Selected => "selected");
names!(Exchange, Exchange::Replicate => "replicate", Exchange::PassQ => "pass-q", Exchange::Selected => "selected");

/// Whether the trained rows of an adapter stand around every chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packets {
    /// They do not.
    #[default]
    Off,
    /// They do where there is such an adapter and the method takes them.
    IfAny,
    /// They must.
    On,
}
