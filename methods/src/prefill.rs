//! How a method prefills a prompt, with its options and the model known: plain data that planner and
//! ranks read.

use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::terms::{Ape, Drift, Layout, Passing, SamKv, Score, Trace};

/// The way in which a prompt is prefilled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Prefill {
    /// The whole prompt on the plan's owner; the others are idle.
    Whole,
    /// The sequence dealt zigzag, keys and values from rank to rank.
    Ring,
    /// The sequence dealt in runs, keys and values of every layer gathered on every rank.
    Gathered {
        /// KV heads gathered at a time; all at once where absent.
        heads_per_gather: Option<usize>,
    },
    /// The sequence dealt zigzag, queries from rank to rank and partial results back.
    Queries,
    /// Prefix and context dealt in blocks, each computed behind an anchor, the first block or a part of it, which every rank computes for
    /// itself; then the query's rows attend to all blocks.
    Anchored {
        /// Rows of a block; an equal part for every rank where absent.
        block_rows: Option<usize>,
        /// What blocks see beside their own, where that is not the whole first block and nothing else.
        passing: Option<Passing>,
    },
    /// Every chunk alone behind the prefix, wherever it lies; then some rows are recomputed.
    Chunks(Selection),
}

/// Which context rows are recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Selection {
    /// No rows.
    Nothing,
    /// The first rows of every chunk.
    Leading {
        /// Rows a chunk; the budget divided evenly where absent.
        per_chunk: Option<usize>,
    },
    /// The best by scores that are drawn.
    Random,
    /// The best by scores that the query decides.
    Evidence(Evidence),
    /// The best by what an auxiliary model reads, where they lie close together.
    Auxiliary,
    /// The best by how far they drift from what is cached of them.
    Drift(Drift),
    /// No rows; chunks stand beside each other, all right behind the prefix, and the query attends to them like this.
    Parallel(Ape),
}

/// The measurements before rows are selected: the query's probe, and perhaps a pass after it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The layers whose attention counts; a row's evidence is the mean over them. The probe ends with the last.
    pub layers: Layers,
    /// Whether a query row's attention is normalised over the context alone instead of everything it sees.
    pub over_context: bool,
    /// The way in which the attention of the query's rows becomes one number a context row.
    pub score: Score,
    /// The way in which the attention of the heads becomes one number.
    pub heads: Heads,
    /// RoPE positions meanwhile.
    pub layout: Layout,
    /// A pass over the best rows of the probe, which measures what those attend to: the budget's part with this divisor.
    pub pass_divisor: Option<usize>,
    /// Free probes after it, by which chunks are put in another order, and their parameters.
    pub trace: Option<Trace>,
    /// Whether a full prefill is computed beside the probe: a row's evidence is then how much what the query takes from it changes.
    pub oracle: bool,
    /// What is kept of every document, where the rest is dropped: the probe sees the first and last rows of each, and in the layers that
    /// count it reads every document by itself.
    pub sparse: Option<SamKv>,
}

/// The way in which the attention of a layer's heads becomes one number.
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
    /// From the first to the one before the second.
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
}

impl Evidence {
    /// What the query attends to in these layers, the mean over heads.
    pub(crate) fn of_query(layers: Layers, score: Score, layout: Layout) -> Self {
        Self {
            layers,
            over_context: false,
            score,
            heads: Heads::Mean,
            layout,
            pass_divisor: None,
            trace: None,
            oracle: false,
            sparse: None,
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
