//! Choices that methods and plans share, with the names that users write.

use std::collections::HashSet;
use std::ops::Range;

/// Conversion of the attention that a context row receives from the query's rows into its score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Score {
    /// Euclidean norm over the query's rows.
    Norm,
    /// Sum over the query's rows.
    Mass,
}

/// RoPE positions while scoring, with P prefix rows, T context rows and a longest chunk of C.
/// Causal order is always the sequence's.
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

/// Treatment of the rows of pictures in selection and recompute. All but the first are for
/// comparison: InfoFlow's program has both (`exclude_image_tokens`; a recompute without DeepStack).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PictureRows {
    /// That of rows of text.
    All,
    /// They are never selected.
    Never,
    /// They are recomputed without the levels of the vision tower.
    Flat,
}

/// Conversion of the scores of a chunk's rows into the chunk's importance, by which chunks are
/// reordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Importance {
    /// Sum of its rows' scores.
    Mass,
    /// Its share of a global top-n, over its length.
    Selected,
}

/// Purpose of a new order of chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum OrderFor {
    /// Rows are recomputed in it, and the query and generated rows read chunks in it.
    #[default]
    All,
    /// Rows are selected and recomputed in it; the query and generated rows read chunks in the
    /// request's own order.
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

/// The cached tensor that is compared with its value after seeing the whole context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DriftOf {
    /// Values (the paper's).
    Values,
    /// Keys before RoPE.
    Keys,
}

/// The measurement of the drift of rows from their cached keys or values.
/// Rows run through the first layers at their global positions, and their new keys or values are
/// compared. With several layers, fewer rows go on after each (CacheBlend's gradual filtering).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Drift {
    /// The tensor that is compared.
    pub of: DriftOf,
    /// Number of layers after the first in which it is compared: 1 or more.
    pub layers: usize,
    /// Conversion of the difference into a score.
    pub score: DriftScore,
    /// Number of the first of these layers after which all rows go on: those after layers with a
    /// sliding window alone, where only rows near a chunk's begin see another chunk.
    pub blind: usize,
}

/// Conversion of a row's difference from its cached state into its score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DriftScore {
    /// Its squared Euclidean norm.
    Squared,
    /// The sum of its absolute numbers, times the attention that the row receives from all context
    /// rows in the last compared layer.
    Attended,
}

impl Default for Drift {
    fn default() -> Self {
        Self { of: DriftOf::Values, layers: 1, score: DriftScore::Squared, blind: 0 }
    }
}

impl Drift {
    /// Number of rows that go on after each of the layers. The last layer leaves `budget` rows;
    /// each layer before it leaves one more equal part of the budget than the next. Of
    /// [`blind`](Self::blind) layers it is all rows.
    pub fn left(&self, budget: usize) -> Vec<usize> {
        let seeing = self.layers.saturating_sub(self.blind);
        let left = |layer: usize| budget + budget * (self.layers - layer) / seeing;
        (1..=self.layers).map(|layer| if layer <= self.blind { usize::MAX } else { left(layer) }).collect()
    }

    /// The rows that went on from each layer but the last, as one list: those first that went on
    /// for longest. Each input list is a subset of the one before.
    pub fn longest_first(lists: &[Vec<u32>]) -> Vec<u32> {
        let (mut rows, mut seen) = (Vec::new(), HashSet::new());
        for &row in lists.iter().rev().flatten() {
            if seen.insert(row) {
                rows.push(row);
            }
        }
        rows
    }

    /// The lists that [`longest_first`](Self::longest_first) combined.
    pub fn went_on<'a>(&self, budget: usize, longest_first: &'a [u32]) -> Vec<&'a [u32]> {
        assert!(self.layers > 0, "drift is measured in no layer");
        let counts = self.left(budget).into_iter().take(self.layers - 1);
        counts.map(|count| &longest_first[..count.min(longest_first.len())]).collect()
    }
}

/// The query's attention to parallel contexts (APE, section 4): softmax at a temperature, merged
/// with the rest by a weighted log-sum-exp.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Ape {
    /// τ: divisor of the scores of context rows. Above 0.
    pub temperature: f32,
    /// S: factor of the context's log-sum-exp, in addition to τ. Above 0.
    pub scale: f32,
}

impl Default for Ape {
    fn default() -> Self {
        Self { temperature: 0.9, scale: 0.9 }
    }
}

impl Ape {
    /// Factor of the context's log-sum-exp: S · τ.
    pub fn weight(self) -> f32 {
        self.scale * self.temperature
    }
}

/// Parts kept of every document if the rest is dropped (SAM-KV), and their mixing with their cached
/// state.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SamKv {
    /// Sizes of the parts.
    pub variant: SamKvVariant,
    /// Number of blocks kept between a document's first and last rows: 1 or more.
    pub blocks: usize,
    /// θ: the share of fresh keys and values; the rest is the cached ones. From 0 to 1.
    pub theta: f32,
}

/// Sizes of the parts kept of every document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SamKvVariant {
    /// 64 first rows, 128 last rows, blocks of 64.
    Large,
    /// 8 first rows, 16 last rows, blocks of 8.
    Small,
}

impl SamKv {
    /// Numbers of first rows, last rows, and rows of a block.
    fn sizes(&self) -> (usize, usize, usize) {
        match self.variant {
            SamKvVariant::Large => (64, 128, 64),
            SamKvVariant::Small => (8, 16, 8),
        }
    }

    /// The first and the last rows of a document of `length` rows, which are always kept.
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

    /// Maximum number of rows kept of a document of `length` rows.
    pub fn kept_of(&self, length: usize) -> usize {
        let ([head, tail], (_, _, block)) = (self.always_of(length), self.sizes());
        head.len() + tail.len() + (tail.start - head.end).min(self.blocks.saturating_mul(block))
    }
}

/// What an excerpt takes whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Excerpt {
    /// Rows of the longest sentence.
    pub longest: u32,
    /// Chunks of which the opening is taken, at most, where the query's words name any.
    pub named: u32,
    /// What is taken.
    pub unit: Unit,
}

/// A part of the context that is selected as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Unit {
    /// A sentence. It counts the mean of its rows.
    Sentence,
    /// A chunk. It counts its best row.
    Chunk,
}

/// Number of drawn tokens whose mean query finds the anchors of chunks.
pub const TYPICAL_ROWS: usize = 64;

/// Rows that stand for a chunk while the query ranks chunks (after QCFuse), and the chunks whose
/// rows are scored after that.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Anchors {
    /// Number of a chunk's anchors besides its first and its last row.
    pub rows: usize,
    /// Share of the chunks whose rows are scored: the best ones. Above 0 and at most 1.
    pub chunks: f32,
}

impl Anchors {
    /// Number of anchors of a chunk of `length` rows.
    pub fn of_chunk(self, length: usize) -> usize {
        length.min(self.rows.saturating_add(2))
    }

    /// Number of chunks in the [share](Self::chunks) of `count` chunks, rounded up.
    pub fn share_of(self, count: usize) -> usize {
        // A share such as 0.3 is a little larger in f32.
        (f64::from(self.chunks) * count as f64 - 1e-6).ceil() as usize
    }

    /// Number of the best chunks whose rows are scored, given the lengths of all, the best first:
    /// those of the [share](Self::share_of), and more where these have fewer rows than the budget.
    pub fn scored_of(self, lengths: &[usize], budget: usize) -> usize {
        let (mut scored, mut rows) = (0, 0);
        while scored < lengths.len() && (scored < self.share_of(lengths.len()) || rows < budget) {
            rows += lengths[scored];
            scored += 1;
        }
        scored
    }
}

/// Keys that blocks of a sequence see beside their own (APB): those of an anchor, and some that
/// earlier blocks pass on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Passing {
    /// Rows at the beginning of the sequence that every block sees; a quarter of a block's rows
    /// where absent.
    pub anchor_tokens: Option<usize>,
    /// Rows that each block passes on in each layer; an eighth of a block's rows where absent.
    pub passing_tokens: Option<usize>,
}

/// Parameters of following dependences between rows.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Trace {
    /// α: minimum net reading at which a row depends on a row of another chunk. The net reading is
    /// its reading of that row less the reading in the other direction.
    pub alpha: f32,
    /// g: minimum relevance of a row that counts, as a share of the largest relevance.
    pub share: f32,
    /// γ: share of its relevance that a row passes on to those it depends on. At most 1.
    pub decay: f32,
    /// Maximum number of free probes, the first included.
    pub rounds: usize,
    /// Whether chunks always stay in the request's order, as the parts of one long document must.
    pub keep_order: bool,
    /// The heads whose attention counts.
    pub heads: TraceHeads,
}

/// Heads whose attention counts in free probes: a row's reading of another row is its mean over
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum TraceHeads {
    /// All heads of all layers.
    #[default]
    Mean,
    /// For each row this share of all heads of all layers: those with the largest attention to one
    /// row of another chunk. Above 0 and at most 1.
    Sharpest(f32),
}

impl From<Option<f32>> for TraceHeads {
    /// From the share of the sharpest heads, or `None` for all heads.
    fn from(sharpest: Option<f32>) -> Self {
        sharpest.map_or(TraceHeads::Mean, TraceHeads::Sharpest)
    }
}

impl TraceHeads {
    /// Number of heads that count for a row, of `heads` in all layers; `None` if all count.
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
    /// Maximum number of rows that a free probe measures; the first one measures that many.
    pub fn rows_of_round(budget: usize) -> usize {
        budget / 3
    }

    /// Maximum number of rows that all free probes together measure.
    pub fn rows_of_all(budget: usize) -> usize {
        budget / 2
    }
}

macro_rules! names {
    ($type:ty, $($variant:path => $name:literal),+) => {
        impl $type {
            /// Name on the command line and in reports.
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
names!(PictureRows, PictureRows::All => "all", PictureRows::Never => "never", PictureRows::Flat => "flat");
names!(Layout, Layout::Global => "global", Layout::HlHp => "hl-hp", Layout::HlTp => "hl-tp", Layout::TlTp => "tl-tp");
names!(OrderFor, OrderFor::All => "all", OrderFor::Selection => "selection");
names!(DriftOf, DriftOf::Values => "values", DriftOf::Keys => "keys");
names!(SamKvVariant, SamKvVariant::Large => "large", SamKvVariant::Small => "small");
names!(Unit, Unit::Sentence => "sentence", Unit::Chunk => "chunk");
names!(Importance, Importance::Mass => "mass", Importance::Selected => "selected");
names!(Exchange, Exchange::Replicate => "replicate", Exchange::PassQ => "pass-q", Exchange::Selected => "selected");

/// Whether the trained rows of an adapter stand around every chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packets {
    /// Never.
    #[default]
    Off,
    /// If there is such an adapter and the method takes it.
    IfAny,
    /// Required.
    On,
}
