//! Data of a method's prefill, with its options and the model known: planner and ranks read it.

use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model_facts::ModelFacts;
use crate::terms::{Anchors, Ape, Drift, Excerpt, Layout, Passing, PictureRows, SamKv, Score, Trace};

/// A way to prefill a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Prefill {
    /// The whole prompt on the plan's owner; the other ranks are idle.
    Whole {
        /// Whether the owner takes the rows of the longest cached prefix of the prompt from its
        /// chunk cache, and keeps the others there.
        reuses_prefix: bool,
        /// Whether chunks come in the order in which most of the prompt's prefix is cached.
        orders_chunks: bool,
    },
    /// The sequence dealt zigzag, keys and values passed from rank to rank.
    Ring,
    /// The sequence dealt in runs, keys and values of every layer gathered on every rank.
    Gathered {
        /// KV heads gathered at a time; all at once where absent.
        heads_per_gather: Option<usize>,
    },
    /// The sequence dealt zigzag, queries passed from rank to rank and partial results back.
    Queries,
    /// Prefix and context dealt in blocks, each computed after an anchor; then the query's rows
    /// attend to all blocks.
    /// The anchor is the first block or a part of it; every rank computes it for itself.
    Anchored {
        /// Rows of a block; an equal part for every rank where absent.
        block_rows: Option<usize>,
        /// Rows that blocks see beside their own, unless that is exactly the whole first block.
        passing: Option<Passing>,
    },
    /// Every chunk alone after the prefix, wherever it lies; then some rows are recomputed.
    Chunks(Selection),
    /// Prefix, selected rows and query alone, each at its own place. Chunks are neither computed
    /// nor cached; rows that are not selected are left out.
    Selected(Selection),
}

impl Prefill {
    /// Whether one rank computes the whole prompt.
    pub fn is_whole(self) -> bool {
        matches!(self, Prefill::Whole { .. })
    }

    /// Numbers that are alive for all rows of a rank while it runs prompt, shard, blocks or chunks.
    pub fn activations(self) -> Activations {
        match self {
            Prefill::Whole { .. }
            | Prefill::Gathered { heads_per_gather: None }
            | Prefill::Queries
            | Prefill::Anchored { .. }
            | Prefill::Chunks(_)
            | Prefill::Selected(_) => Activations::Stream,
            Prefill::Ring => Activations::Queries,
            Prefill::Gathered { heads_per_gather: Some(_) } => Activations::Results,
        }
    }
}

/// Numbers of a prefill that are alive for all rows of a rank, beside keys, values and one slice of
/// everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// The residual stream: the attention takes queries slice by slice.
    Stream,
    /// And queries and their results: keys pass by, and each is for all queries.
    Queries,
    /// And queries, two partial results and their sum: results are found for all queries at once.
    Results,
}

/// Selection of the context rows to recompute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Selection {
    /// No rows.
    Nothing,
    /// The first rows of every chunk.
    Leading {
        /// Rows of each chunk; the budget divided evenly where absent.
        per_chunk: Option<usize>,
    },
    /// The rows with the highest random scores.
    Random,
    /// The rows with the highest scores from the query's attention.
    Evidence(Evidence),
    /// Rows by the readings of an auxiliary model.
    Auxiliary(AuxiliaryReading),
    /// The rows that drift most from their cached state.
    Drift(Drift),
    /// No rows; chunks stand in parallel, all right after the prefix, and the query attends to them
    /// with these parameters.
    Parallel(Ape),
}

/// What an auxiliary model reads, and the choice of rows by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuxiliaryReading {
    /// Each chunk with the query: the rows with the highest readings, where they lie close
    /// together.
    Chunks,
    /// The whole prompt, after which it writes some tokens: the runs of rows with the highest
    /// means.
    Prompt {
        /// Maximum number of tokens that it writes.
        tokens: u32,
        /// Neighbouring rows over which readings are averaged, an odd number.
        pool: u32,
        /// Rows of a run.
        span: u32,
    },
}

impl AuxiliaryReading {
    /// Maximum number of tokens that the model writes after a prompt.
    pub fn written(self) -> u32 {
        match self {
            AuxiliaryReading::Chunks => 0,
            AuxiliaryReading::Prompt { tokens, .. } => tokens,
        }
    }
}

/// The measurements before rows are selected: the query's probe, and perhaps a pass after it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Layers whose attention counts; a row's evidence is the mean over them. The probe ends with
    /// the last.
    pub layers: Layers,
    /// Whether a query row's attention is normalised over the context alone instead of everything
    /// it sees.
    pub over_context: bool,
    /// Conversion of the attention of the query's rows into one number a context row.
    pub score: Score,
    /// Rows before the query's last at which a row's attention counts 1/e of that of the last;
    /// absent if all count alike.
    pub recency: Option<f32>,
    /// Conversion of the attention of the heads into one number.
    pub heads: Heads,
    /// RoPE positions during the measurement.
    pub layout: Layout,
    /// Divisor of the budget for a pass over the best rows of the probe, which measures their
    /// attention.
    pub pass_divisor: Option<usize>,
    /// Parameters of free probes after the query's probe, by which chunks are reordered.
    pub trace: Option<Trace>,
    /// Place of a row in its chunk at which its evidence counts half; absent where places do not
    /// count.
    pub half: Option<u32>,
    /// Whether a full prefill is computed beside the probe. A row's evidence is then the change of
    /// its contribution to the query.
    pub oracle: bool,
    /// Parts kept of every document, if the rest is dropped. The probe sees the first and last rows
    /// of each, and in the counted layers it reads every document by itself.
    pub sparse: Option<SamKv>,
    /// Parts that are selected whole, if neither they nor the query see any other row of the
    /// context.
    pub excerpt: Option<Excerpt>,
    /// Rows that stand for chunks, if chunks are ranked before their rows are scored. The probe
    /// sees them alone of the context, and the only counted layer ranks chunks by them.
    pub anchors: Option<Anchors>,
    /// Treatment of pictures' rows.
    pub picture_rows: PictureRows,
}

/// Conversion of the attention of a layer's heads into one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Heads {
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
}

/// Some layers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layers {
    /// All.
    All,
    /// From the first number to before the second.
    Some(usize, usize),
}

impl Layers {
    /// The layers, of a model with `layers` layers.
    pub fn of(self, layers: usize) -> Range<usize> {
        match self {
            Layers::All => 0..layers,
            Layers::Some(from, to) => from..to,
        }
    }

    /// These layers and, if all of them have a sliding window, those up to the next layer without
    /// one, or else back to the one before: the query sees the context in such a layer only.
    #[must_use]
    pub(crate) fn reaching(self, model: ModelFacts) -> Self {
        let range = self.of(model.layers);
        let sees_all = |layer: &usize| !model.windowed.contains(*layer);
        if range.is_empty() || range.clone().any(|layer| sees_all(&layer)) {
            return self;
        }
        let (after, before) = ((range.end..model.layers).find(sees_all), (0..range.start).rev().find(sees_all));
        match (after, before) {
            (Some(layer), _) => Layers::Some(range.start, layer + 1),
            (None, Some(layer)) => Layers::Some(layer, range.end),
            (None, None) => self,
        }
    }
}

impl Evidence {
    /// The query's attention in these layers, the mean over heads.
    pub(crate) fn of_query(layers: Layers, score: Score, layout: Layout) -> Self {
        Self {
            layers,
            over_context: false,
            score,
            recency: None,
            heads: Heads::Mean,
            layout,
            pass_divisor: None,
            trace: None,
            half: None,
            oracle: false,
            sparse: None,
            excerpt: None,
            anchors: None,
            picture_rows: PictureRows::All,
        }
    }
}

impl FromStr for Layers {
    type Err = ();

    /// `FIRST..END`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let parts = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
        parts.map(|(first, end)| Layers::Some(first, end)).ok_or(())
    }
}
