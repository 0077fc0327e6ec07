//! Everything that crosses a boundary: the messages that coordinator and ranks exchange, the names of chunks, and the framing of bytes that
//! leave a process.
//!
//! The coordinator sends [`Order`]s to rank 0, which broadcasts them; rank 0 answers with [`Event`]s. The types carry facts and
//! pure arithmetic on them, no behaviour, and no tensor. Planner and ranks share what follows from a plan: where rows stand and which
//! may be selected (methods of [`Plan`]), and which rank computes which ([`deal`]).

#![forbid(unsafe_code)]

mod auxiliary;
mod chunk_key;
pub mod deal;
mod evict;
pub mod exit;
mod frame;
mod kept;
mod message;
mod method;
mod order;
mod phase;
mod plan;
mod point;
mod report;
mod rows;
mod tier;
mod traffic;

pub use auxiliary::{Auxiliary, AuxiliaryCost, AuxiliaryPrompt, DraftModel};
pub use chunk_key::{ChunkKey, KeySpace, NoKey};
pub use evict::{
    EVICTIONS, Evict, Eviction, EvictionDescriptor, EvictionEvidence, LayerBudgets, POOLED_ROWS, PSEUDO_TOKENS,
    PYRAMID_BETA, SINK_ROWS, WINDOW_ROWS,
};
pub use frame::{HEADER_BYTES, PROTOCOL_VERSION, checksum, decode_frame, encode_frame};
pub use message::{Error, MESSAGE_LIMIT_BYTES, Result, decode, encode, within_limit};
pub use method::{
    Ape, CHUNKS_ALONE, COST_LETTERS, Choice, Claim, Command, Descriptor, Drift, DriftOf, DriftScore, Evidence,
    Exchange, Family, Heads, Importance, InfoFlow, InvalidOption, Layers, Layout, METHODS, Method, OrderFor, Packets,
    Passing, Prefill, REFERENCE, SamKv, SamKvVariant, Score, Selection, Trace, TraceHeads, Wishes,
};
pub use order::Order;
pub use phase::Phase;
pub use plan::{Around, Chunk, LookAhead, Plan, Returns, Sampling, Source};
pub use point::{LOOK_TILE_ROWS, PointShape, Word};
pub use report::{
    ChunkCacheReport, DeviceMemory, DrawnToken, Event, Evicted, FromStore, KeptRows, Logprobs, Outcome, RankReport,
    Refusal, ScoredQuery, ScoredToken, Sharpest, Span, StepReport,
};
pub use rows::{leading, leading_counts};
pub use tier::{StoreError, StoreOperation, StoreReport, Tier};
pub use traffic::{Collective, Traffic, TrafficEntry};
