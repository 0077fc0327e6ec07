//! The answers of the ranks: tokens as soon as they are known, and each rank's report at the end of an order.

use crate::{ChunkKey, Phase, StoreReport, Traffic};

/// An event that rank 0 tells the coordinator.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Event {
    /// The first token, as soon as it is known.
    FirstToken {
        /// Number of the request.
        request: u64,
        /// The token that was drawn.
        drawn: DrawnToken,
    },
    /// The end of [`Order::Prefill`](crate::Order::Prefill), which has sent a first token before.
    Prefilled {
        /// Number of the request.
        request: u64,
        /// The outcome, with the first of the tokens.
        outcome: Box<Outcome>,
        /// One report a rank, in rank order.
        reports: Vec<RankReport>,
    },
    /// The end of [`Order::Chunks`](crate::Order::Chunks).
    Kept {
        /// Number of the request.
        request: u64,
        /// One report a rank, in rank order.
        reports: Vec<RankReport>,
    },
    /// The end of [`Order::Decode`](crate::Order::Decode).
    Stepped {
        /// For each sequence of the order, in its order, the number of its request and its next token or refusal.
        tokens: Vec<(u64, Result<DrawnToken, Refusal>)>,
        /// One report a rank, in rank order.
        reports: Vec<StepReport>,
    },
    /// The end of [`Order::Release`](crate::Order::Release).
    Released {
        /// Number of sequences that each rank still has, in rank order.
        running: Vec<usize>,
    },
    /// The end of an order that failed in a way which all ranks have learnt alike: the request is over, the group lives on.
    Refused {
        /// Number of the request.
        request: u64,
        /// Why.
        refusal: Refusal,
        /// The traffic of each rank until then, in rank order.
        traffic: Vec<Traffic>,
    },
    /// The end of [`Order::Prefill`](crate::Order::Prefill) or [`Order::Chunks`](crate::Order::Chunks) for a request that was let go of
    /// meanwhile: nothing of it is left but chunks that its reports call kept.
    Cancelled {
        /// Number of the request.
        request: u64,
        /// One report a rank, in rank order.
        reports: Vec<RankReport>,
    },
    /// The group failed, and with it every request under way.
    Failed {
        /// Number of the request under way; 0 if there was none.
        request: u64,
        /// The rank that failed first.
        rank: usize,
        /// The exit code that stands for the cause.
        exit_code: u8,
        /// Why.
        cause: String,
    },
}

/// A token that was drawn.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DrawnToken {
    /// Its id.
    pub token: u32,
    /// How clear the choice was: the difference between the two largest logits over the larger one's absolute value. Two ways to
    /// compute the same logits may draw another token where this is within their rounding.
    pub margin: f32,
    /// Log-probabilities, if asked for.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Natural logarithms of probabilities, by the softmax of the logits as they are: before temperature, `top_k` and `top_p`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Logprobs {
    /// That of the token that was drawn.
    pub drawn: f32,
    /// The likeliest tokens, the best first, ties the lower id first.
    pub top: Vec<(u32, f32)>,
}

/// The tokens of a query from its second one on.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ScoredQuery(pub Vec<ScoredToken>);

/// How likely a token of the prompt is behind those before it: natural logarithms of probabilities, by the softmax of the logits as they
/// are.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ScoredToken {
    /// The token.
    pub token: u32,
    /// Its own log-probability.
    pub logprob: f32,
    /// 1 for the likeliest, 2 for the next.
    pub rank: u32,
    /// The likeliest tokens in its place, the best first, ties the lower id first.
    pub top: Vec<(u32, f32)>,
}

/// The failure of one request.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Refusal {
    /// The exit code that stands for the kind of failure.
    pub exit_code: u8,
    /// Why, in one line.
    pub cause: String,
}

/// The report of one rank on one step of decoding.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StepReport {
    /// Which rank.
    pub rank: usize,
    /// Seconds of the step, waiting included.
    pub seconds: f64,
    /// Seconds of it spent waiting for other ranks.
    pub waited_s: f64,
    /// The traffic of the step.
    pub traffic: Traffic,
    /// Sequences that this rank stepped.
    pub sequences: usize,
}

/// The largest attention that a row, which matters to the query itself, pays a row of another chunk, less that the other way.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sharpest {
    /// Of any other chunk; none where none comes to α.
    pub any: Option<f32>,
    /// Of a chunk that stands behind its own in the request, which is what moves chunks; none where none comes to α.
    pub behind: Option<f32>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Outcome {
    /// The generated tokens; one that ended the answer is the last.
    pub tokens: Vec<u32>,
    /// For each token how clear the choice was ([`DrawnToken::margin`]).
    pub margins: Vec<f32>,
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// The recomputed rows, ascending, counted from the first prefix row with chunks in the request's own order.
    pub selected: Vec<u32>,
    /// The rows that were recomputed once before, to measure what they attend to (relay's first hop), ascending; or those that went
    /// on from the first layer in which drift was measured, if there were more: those first that went on for longest, each such
    /// group ascending; or those that free probes measured (trace), one probe after the other, each ascending.
    pub measured: Vec<u32>,
    /// How many of them each free probe measured. Empty where there was none, which is so too where its positions would reach beyond
    /// the model's.
    pub rounds: Vec<usize>,
    /// The largest sharp readings of those probes.
    pub sharpest: Sharpest,
    /// Rows that could have been selected.
    pub candidates: usize,
    /// The first token's logits, if asked for.
    pub logits: Option<Vec<f32>>,
    /// One score a context row, chunks in the request's own order, if asked for and if the method has them.
    pub scores: Option<Vec<f32>>,
    /// The query's tokens from its second one on, if they were asked for: how likely each is behind all that stands before it.
    pub prompt: Option<Box<ScoredQuery>>,
    /// The rows that are kept for decoding, if scores are asked for and rows were evicted.
    pub kept: Option<Box<KeptRows>>,
    /// Where chunks were compressed: the context rows that each KV head holds as they were prefilled, with the scores.
    pub kept_of_chunks: Option<Box<KeptRows>>,
}

/// The rows that each KV head of each layer keeps: by layer and KV head, in causal order.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeptRows(pub Vec<Vec<Vec<u32>>>);

/// The report of one rank on a prefill.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RankReport {
    /// Which rank.
    pub rank: usize,
    /// Whether the first token was drawn here: this rank's timeline is the critical path.
    pub drew_first_token: bool,
    /// Its phases one after the other, from the arrival of the plan on.
    pub spans: Vec<Span>,
    /// The traffic until the first token.
    pub traffic: Traffic,
    /// The traffic after the first token: the request's share of the steps that it took together with others.
    pub decode_traffic: Traffic,
    /// What was evicted behind the first token; absent where nothing was.
    pub evicted: Option<Evicted>,
    /// Context, prefix and query rows computed in the prefill of chunks or of the whole prompt.
    pub prefilled_rows: usize,
    /// Rows computed in the recompute pass, the query's included.
    pub recomputed_rows: usize,
    /// Seconds that auxiliary models ran on this rank, beside other work or not; 0 where they do not.
    pub auxiliary_s: f64,
    /// Control points that it passed, as many as every other rank.
    pub points: u64,
    /// The report of the chunk cache on the request.
    pub chunk_cache: ChunkCacheReport,
    /// The memory of its device; none on a CPU.
    pub device_memory: Option<DeviceMemory>,
    /// Bytes that its process has in the host's memory when the answer is out; 0 if the system does not say. Ranks that are
    /// threads have one process.
    pub resident_bytes: u64,
}

/// The eviction on one rank: its part of the prompt's keys and values before and behind it. A row is counted once a layer and KV head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Evicted {
    /// Rows that it held, summed over layers and KV heads.
    pub rows_before: u64,
    /// Rows that it holds for decoding.
    pub rows_kept: u64,
    /// Bytes of keys and values of the rows before.
    pub bytes_before: u64,
    /// Bytes that are left of them, places that pad heads to one length included.
    pub bytes_kept: u64,
    /// Rows that it computed to see what they attend to.
    pub asking_rows: usize,
    /// Bytes that it received: queries, partial results, scores and kept rows.
    pub received_bytes: u64,
}

/// The pool that a device's tensors come from. Ranks that share a device and a process share it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeviceMemory {
    /// Bytes in tensors when the answer is out: weights, chunk caches, keys and values of the request.
    pub used_bytes: u64,
    /// The most that were in tensors at once since the process began.
    pub high_bytes: u64,
    /// Bytes that the pool has taken from the device; they grow only where `high_bytes` does.
    pub reserved_bytes: u64,
    /// Bytes of the device that the buffers of messages between ranks take, beside the pool.
    pub message_bytes: u64,
}

/// The report of one rank's chunk cache on a request, and its size now. The shared prefix is an entry like a chunk.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ChunkCacheReport {
    /// Chunks taken from it.
    pub hits: usize,
    /// Tokens of those.
    pub hit_tokens: usize,
    /// Chunks that the plan expected in it and that were not there.
    pub misses: usize,
    /// Entries that were added.
    pub stored: Vec<ChunkKey>,
    /// Entries that were evicted.
    pub evicted: Vec<ChunkKey>,
    /// Bytes of keys and values in it.
    pub used_bytes: u64,
    /// The chunks of the request that came from the store behind it, and that did not.
    pub from_store: FromStore,
    /// What happened in that store since a rank told of it last, behind earlier requests too. Absent where there is none.
    pub store: Option<StoreReport>,
}

/// The chunks of a request that lay in a rank's store when it looked, and were not in its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FromStore {
    /// Chunks whose keys and values were read there: some of the hits.
    pub loaded: usize,
    /// Tokens of those.
    pub loaded_tokens: usize,
    /// Bytes of keys and values of those.
    pub loaded_bytes: u64,
    /// Chunks that were computed because that is faster.
    pub computed: usize,
    /// Chunks whose reading had begun and that turned out to be of no use.
    pub spoilt: usize,
}

/// One phase on one rank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// Which phase.
    pub phase: Phase,
    /// Seconds from the arrival of the plan to its start.
    pub start_s: f64,
    /// Its length in seconds, waiting included.
    pub seconds: f64,
    /// Seconds of it spent waiting for other ranks.
    pub waited_s: f64,
}
