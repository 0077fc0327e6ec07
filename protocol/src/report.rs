//! Answers of the ranks: tokens as soon as they are drawn, and each rank's report at the end of an
//! order.

use crate::{ChunkKey, Phase, StoreReport, Traffic};

/// An event that rank 0 sends to the coordinator.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Event {
    /// The first token, as soon as it is drawn.
    FirstToken {
        /// Number of the request.
        request: u64,
        /// The token that was drawn.
        drawn: DrawnToken,
    },
    /// The end of [`Order::Prefill`](crate::Order::Prefill), after its [`Event::FirstToken`].
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
    /// The prefill in progress has halted at a control point, and the ranks wait for orders.
    Halted {
        /// Number of its request.
        request: u64,
    },
    /// The end of [`Order::Decode`](crate::Order::Decode).
    Stepped {
        /// For each sequence of the order, in its order, the number of its request and its next
        /// token or refusal.
        tokens: Vec<(u64, Result<DrawnToken, Refusal>)>,
        /// One report a rank, in rank order.
        reports: Vec<StepReport>,
    },
    /// The end of [`Order::HandOver`](crate::Order::HandOver).
    HandedOver {
        /// Number of the request.
        request: u64,
        /// Keys after RoPE and values, `[rows, 2, kv_heads, head_dim]`, little-endian; none while
        /// its prefill has not come to this layer, and a refusal if the ranks do not have each of
        /// the rows once.
        rows: Result<Option<Vec<u8>>, Refusal>,
    },
    /// The end of [`Order::Release`](crate::Order::Release).
    Released {
        /// Number of sequences that each rank still has, in rank order.
        running: Vec<usize>,
    },
    /// The end of an order that failed in a way known to all ranks alike: the request is over, the
    /// group lives on.
    Refused {
        /// Number of the request.
        request: u64,
        /// Kind and cause of the failure.
        refusal: Refusal,
        /// Traffic of each rank up to the failure, in rank order.
        traffic: Vec<Traffic>,
    },
    /// The end of [`Order::Prefill`](crate::Order::Prefill) or
    /// [`Order::Chunks`](crate::Order::Chunks) for a request that was cancelled meanwhile.
    /// Nothing of it remains but chunks that its reports list as kept.
    Cancelled {
        /// Number of the request.
        request: u64,
        /// One report a rank, in rank order.
        reports: Vec<RankReport>,
    },
    /// The group failed, and with it every request in progress.
    Failed {
        /// Number of the request in progress; 0 if there was none.
        request: u64,
        /// The rank that failed first.
        rank: usize,
        /// Exit code of the cause.
        exit_code: u8,
        /// Cause, in one line.
        cause: String,
    },
}

/// A token that was drawn.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DrawnToken {
    /// Its id.
    pub token: u32,
    /// Relative margin of the choice: the difference between the two largest logits over the larger
    /// one's absolute value.
    /// Where it is within rounding, two ways to compute the same logits may draw different tokens.
    pub margin: f32,
    /// Log-probabilities, if requested.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Natural logarithms of probabilities, from the softmax of the raw logits: before temperature,
/// `top_k` and `top_p`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Logprobs {
    /// Log-probability of the token that was drawn.
    pub drawn: f32,
    /// The likeliest tokens, the best first, ties the lower id first.
    pub top: Vec<(u32, f32)>,
}

/// The tokens of a query from its second one on.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ScoredQuery(pub Vec<ScoredToken>);

/// Probability of a token of the prompt after those before it: natural logarithms, from the softmax
/// of the raw logits.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ScoredToken {
    /// The token.
    pub token: u32,
    /// Its own log-probability.
    pub logprob: f32,
    /// Rank of the token among all: 1 for the likeliest, 2 for the next.
    pub rank: u32,
    /// The likeliest tokens in its place, the best first, ties the lower id first.
    pub top: Vec<(u32, f32)>,
}

/// The failure of one request.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Refusal {
    /// Exit code of the kind of failure.
    pub exit_code: u8,
    /// Cause, in one line.
    pub cause: String,
}

/// Report of one rank on one step of decoding.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StepReport {
    /// The rank.
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

/// The largest net reading of a row of another chunk by a row that matters to the query: its
/// attention less the attention in the other direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sharpest {
    /// Largest over all other chunks; absent if none reaches α.
    pub any: Option<f32>,
    /// Largest over chunks after the reader's own in the request, which is what moves chunks;
    /// absent if none reaches α.
    pub behind: Option<f32>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Outcome {
    /// The generated tokens; an end token, if any, is the last.
    pub tokens: Vec<u32>,
    /// Margin of each token ([`DrawnToken::margin`]).
    pub margins: Vec<f32>,
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// The recomputed rows, ascending, counted from the first prefix row with chunks in the
    /// request's own order.
    pub selected: Vec<u32>,
    /// Rows that were measured before selection. Those of relay's first hop, recomputed once to
    /// measure their attention, ascending.
    /// For several layers of drift, those that went on from the first measured layer: grouped by
    /// how long they went on, longest first, each group ascending.
    /// For trace, those that free probes measured, one probe after the other, each ascending.
    pub measured: Vec<u32>,
    /// Number of rows measured by each free probe. Empty if there was none, also where its
    /// positions would exceed the model's.
    pub rounds: Vec<usize>,
    /// Largest net readings of those probes.
    pub sharpest: Sharpest,
    /// Number of rows that could have been selected.
    pub candidates: usize,
    /// The first token's logits, if requested.
    pub logits: Option<Vec<f32>>,
    /// One score a context row, chunks in the request's own order, if requested and if the method
    /// has them.
    pub scores: Option<Vec<f32>>,
    /// Log-probabilities of the query's tokens from its second one on, if requested: each given
    /// everything before it.
    pub prompt: Option<Box<ScoredQuery>>,
    /// Rows kept for decoding, if scores are requested and rows were evicted.
    pub kept: Option<Box<KeptRows>>,
    /// Context rows that each KV head holds of compressed chunks after their prefill, if scores are
    /// requested.
    pub kept_of_chunks: Option<Box<KeptRows>>,
}

/// Rows that each KV head of each layer keeps: by layer and KV head, in causal order.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeptRows(pub Vec<Vec<Vec<u32>>>);

/// Report of one rank on a prefill.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RankReport {
    /// The rank.
    pub rank: usize,
    /// Whether the first token was drawn here: this rank's timeline is the critical path.
    pub drew_first_token: bool,
    /// Its phases in sequence, from the arrival of the plan on.
    pub spans: Vec<Span>,
    /// Traffic up to the first token.
    pub traffic: Traffic,
    /// Traffic after the first token: the request's share of the steps that it took together with
    /// others.
    pub decode_traffic: Traffic,
    /// The eviction after the first token; absent if nothing was evicted.
    pub evicted: Option<Evicted>,
    /// Context, prefix and query rows computed in the prefill of chunks or of the whole prompt.
    pub prefilled_rows: usize,
    /// Rows computed in the recompute pass, the query's included.
    pub recomputed_rows: usize,
    /// Seconds that auxiliary models ran on this rank, concurrently with other work or not; 0 if it
    /// runs none.
    pub auxiliary_s: f64,
    /// Number of control points that it passed, the same on every rank.
    pub points: u64,
    /// Report of the chunk cache on the request.
    pub chunk_cache: ChunkCacheReport,
    /// The memory of its device; none on a CPU.
    pub device_memory: Option<DeviceMemory>,
    /// Bytes that its process has in the host's memory after the answer; 0 if the system does not
    /// report them. Ranks that are threads have one process.
    pub resident_bytes: u64,
}

/// The eviction on one rank: its part of the prompt's keys and values before and after. A row is
/// counted once a layer and KV head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Evicted {
    /// Rows held before, summed over layers and KV heads.
    pub rows_before: u64,
    /// Rows held for decoding.
    pub rows_kept: u64,
    /// Bytes of keys and values of the rows before.
    pub bytes_before: u64,
    /// Bytes left of them, padding of heads to one length included.
    pub bytes_kept: u64,
    /// Rows computed to measure their attention.
    pub asking_rows: usize,
    /// Bytes received: queries, partial results, scores and kept rows.
    pub received_bytes: u64,
}

/// The memory pool of a device's tensors. Ranks that share a device and a process share it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeviceMemory {
    /// Bytes in tensors after the answer: weights, chunk caches, keys and values of the request.
    pub used_bytes: u64,
    /// Maximum bytes in tensors at once since the process began.
    pub high_bytes: u64,
    /// Bytes that the pool has taken from the device; they grow only with `high_bytes`.
    pub reserved_bytes: u64,
    /// Bytes of the device in message buffers between ranks, in addition to the pool.
    pub message_bytes: u64,
}

/// Report of one rank's chunk cache on a request, and its current size. The shared prefix is an
/// entry like a chunk.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ChunkCacheReport {
    /// Number of chunks taken from it.
    pub hits: usize,
    /// Tokens of those chunks.
    pub hit_tokens: usize,
    /// Number of chunks that the plan expected in it and that were missing.
    pub misses: usize,
    /// Number of pictures whose features were taken from it.
    pub picture_hits: usize,
    /// Entries that were added.
    pub stored: Vec<ChunkKey>,
    /// Entries that were evicted.
    pub evicted: Vec<ChunkKey>,
    /// Bytes of keys and values in it.
    pub used_bytes: u64,
    /// Chunks of the request from the store behind the cache, and chunks computed instead.
    pub from_store: FromStore,
    /// Events in that store since a rank's last report, those of background work for earlier
    /// requests included. Absent without a store.
    pub store: Option<StoreReport>,
}

/// Chunks of a request that a rank found in its store and not in its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FromStore {
    /// Number of chunks loaded from it: some of the hits.
    pub loaded: usize,
    /// Tokens of those chunks.
    pub loaded_tokens: usize,
    /// Bytes of keys and values of those chunks.
    pub loaded_bytes: u64,
    /// Number of chunks computed because computing is faster.
    pub computed: usize,
    /// Number of chunks whose read had begun and whose data turned out to be unusable.
    pub spoilt: usize,
}

/// One phase on one rank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// The phase.
    pub phase: Phase,
    /// Seconds from the arrival of the plan to its start.
    pub start_s: f64,
    /// Its length in seconds, waiting included; without the steps of decoding in between, which
    /// are a phase of their own.
    pub seconds: f64,
    /// Seconds of it spent waiting for other ranks.
    pub waited_s: f64,
}
