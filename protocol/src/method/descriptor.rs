//! The descriptor of a method. Planner, forecasts, command line, reports and ranks read it; none of them matches on a
//! method or compares its name.

use std::ops::Range;

use super::{Ape, Drift, Layout, METHODS, Method, Passing, SamKv, Score, Trace, TraceHeads};

/// The facts about a method that hold for all its parameters.
#[derive(Debug)]
pub struct Descriptor {
    /// The name on the command line and in reports.
    pub name: &'static str,
    /// Its work in one line.
    pub summary: &'static str,
    /// The paper or project that it comes from.
    pub source: &'static str,
    /// The claim about its answer.
    pub claim: Claim,
    /// Whether it prefills chunk by chunk, each wherever it lies, so that chunks can be kept for later requests.
    pub in_chunks: bool,
    /// The work until the first token, and what moves beside what the exchange of a recompute does: in rows that run through the model and
    /// pairs of a row and a key that it sees, in the letters of `COST_LETTERS`.
    pub cost: &'static str,
    /// Share of the context that it recomputes where none is asked for; absent where it recomputes nothing.
    pub ratio: Option<f64>,
    /// The user's choices that make a difference to it.
    pub takes: &'static [Choice],
    /// The commands that run it where the user names no method. Comparisons run all methods.
    pub default_of: &'static [Command],
    /// Specs of it, `NAME[:OPTION[=VALUE]]..`, that every test of what holds for all methods runs: the bare name first, then one for each
    /// option that changes the shape of what is computed.
    pub samples: &'static [&'static str],
    /// Makes the method with the user's parameters, or says which of them is invalid.
    pub make: fn(&Wishes) -> Result<Method, InvalidOption>,
}

/// The letters of [`Descriptor::cost`]. "Chunks" are T/W rows and T·c/(2W) pairs a rank where they are cold, and nothing where they are warm.
pub const COST_LETTERS: &str = "N rows of the prompt, T of the context, M of the query, c of a chunk; n = ratio · T rows are recomputed; W ranks; \
     D layers in which drift is measured";

/// The claim about a method's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It equals a full prefill but for rounding.
    Exact,
    /// It differs from a full prefill, but in one setting.
    Approximate {
        /// That setting.
        exact_where: &'static str,
        /// The options behind any of its specs that make it so for every prompt; absent where it is a matter of the prompt.
        exact_with: Option<&'static str>,
    },
}

/// A choice of the user that makes a difference to some methods only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Share of the context to recompute.
    Ratio,
    /// Chunks are put into another order first.
    Reorder,
    /// The way in which attention becomes a score.
    Score,
    /// Layers whose attention counts.
    ScoreLayers,
    /// RoPE positions while scoring.
    Layout,
    /// Rows to recompute of each chunk.
    PerChunk,
    /// KV heads gathered at a time.
    HeadsPerGather,
    /// The tensors that are compared with the cache.
    DriftOf,
    /// The number of layers in which they are compared.
    DriftLayers,
    /// The net reading from which on one row depends on another.
    TraceAlpha,
    /// The heads whose attention counts in free probes.
    TraceHeads,
    /// Chunks stay in the request's order.
    KeepOrder,
    /// What another order of chunks is for.
    OrderFor,
    /// Rows of each block.
    BlockTokens,
    /// Rows of the anchor in front of every block.
    AnchorTokens,
    /// Rows that each block passes on.
    PassingTokens,
    /// The temperature of attention to contexts that stand beside each other.
    ApeTemperature,
    /// The scale of what they weigh beside the rest.
    ApeScale,
    /// The sizes of what is kept of every document.
    SamKvVariant,
    /// The blocks that are kept of every document.
    SamKvBlocks,
    /// The share of what is fresh in what is kept.
    SamKvTheta,
    /// The model beside the main one that reads the context for it.
    AuxModel,
    /// The trained rows around chunks, without which it cannot be.
    Adapter,
    /// Trained rows around chunks, where they are wanted.
    Packets,
    /// What is kept of every chunk before it is cached.
    KeepPerChunk,
}

impl Choice {
    /// The option on the command line.
    pub fn option(self) -> &'static str {
        match self {
            Choice::Ratio => "--ratio",
            Choice::Reorder => "--reorder",
            Choice::Score => "--score",
            Choice::ScoreLayers => "--score-layers",
            Choice::Layout => "--layout",
            Choice::PerChunk => "--per-chunk",
            Choice::HeadsPerGather => "--heads-per-gather",
            Choice::DriftOf => "--drift-of",
            Choice::DriftLayers => "--drift-layers",
            Choice::TraceAlpha => "--trace-alpha",
            Choice::TraceHeads => "--trace-heads",
            Choice::KeepOrder => "--keep-order",
            Choice::OrderFor => "--order-for",
            Choice::BlockTokens => "--block-tokens",
            Choice::AnchorTokens => "--anchor-tokens",
            Choice::PassingTokens => "--passing-tokens",
            Choice::ApeTemperature => "--ape-temperature",
            Choice::ApeScale => "--ape-scale",
            Choice::SamKvVariant => "--samkv-variant",
            Choice::SamKvBlocks => "--samkv-blocks",
            Choice::SamKvTheta => "--samkv-theta",
            Choice::AuxModel => "--aux-model",
            Choice::Adapter => "--adapter",
            Choice::Packets => "--packets",
            Choice::KeepPerChunk => "--keep-per-chunk",
        }
    }
}

/// A command that has methods of its own choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// One request; it takes one method.
    Prefill,
    /// A study.
    Bench,
    /// Predictions.
    Plan,
}

/// The user's choices about a method, and the sizes of the model that they are for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wishes {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of the model.
    pub kv_heads: usize,
    /// How attention becomes a score.
    pub score: Score,
    /// First scoring layer and the one after the last; the method's own where absent.
    pub score_layers: Option<(usize, usize)>,
    /// RoPE positions while scoring.
    pub layout: Layout,
    /// Rows to recompute of each chunk; the budget divided evenly where absent.
    pub per_chunk: Option<usize>,
    /// KV heads gathered at a time; all where absent.
    pub heads_per_gather: Option<usize>,
    /// The tensors that are compared with the cache, and the number of layers.
    pub drift: Drift,
    /// The net reading from which on one row depends on another; the method's own where absent.
    pub trace_alpha: Option<f32>,
    /// The heads whose attention counts in free probes.
    pub trace_heads: TraceHeads,
    /// Whether chunks stay in the request's order.
    pub keep_order: bool,
    /// Rows of each block; an equal part for every rank where absent.
    pub block_tokens: Option<usize>,
    /// What blocks see beside their own.
    pub passing: Passing,
    /// How the query attends to contexts that stand beside each other.
    pub ape: Ape,
    /// What is kept of every document.
    pub samkv: SamKv,
    /// Seed of every draw.
    pub seed: u64,
}

/// An option whose value a method cannot take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidOption {
    /// The option.
    pub option: &'static str,
    /// Its value.
    pub found: String,
    /// The values that would be right.
    pub wanted: String,
}

/// The way in which a prompt is prefilled.
#[derive(Debug, Clone, Copy, PartialEq)]
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
#[derive(Debug, Clone, Copy, PartialEq)]
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
#[derive(Debug, Clone, Copy, PartialEq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heads {
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
}

/// Some layers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// All.
    All,
    /// From the first to the one before the second.
    Some(usize, usize),
}

impl Layers {
    /// The layers of a model that has so many.
    pub fn of(self, layers: usize) -> Range<usize> {
        match self {
            Layers::All => 0..layers,
            Layers::Some(from, to) => from..to,
        }
    }
}

impl Descriptor {
    /// The method of that name.
    pub fn find(name: &str) -> Option<&'static Descriptor> {
        METHODS.into_iter().find(|method| method.name == name)
    }

    /// Every name, for messages.
    pub fn names() -> Vec<&'static str> {
        METHODS.map(|method| method.name).to_vec()
    }

    /// The methods that a command takes where none is named.
    pub fn defaults_of(command: Command) -> Vec<&'static Descriptor> {
        METHODS.into_iter().filter(|method| method.default_of.contains(&command)).collect()
    }

    /// Names of the methods to which a choice makes a difference.
    pub fn names_taking(choice: Choice) -> Vec<&'static str> {
        METHODS.into_iter().filter(|method| method.takes(choice)).map(|method| method.name).collect()
    }

    /// Whether the result equals a full prefill but for rounding.
    pub fn is_exact(&self) -> bool {
        self.claim == Claim::Exact
    }

    /// Whether a choice makes a difference.
    pub fn takes(&self, choice: Choice) -> bool {
        self.takes.contains(&choice)
    }
}

/// No two methods have the same name.
impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Descriptor {}
