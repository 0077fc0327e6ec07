//! Messages between coordinator and ranks, names of chunks, and framing of bytes that leave a
//! process.
//!
//! The coordinator sends [`Order`]s to rank 0, which broadcasts them; rank 0 answers with
//! [`Event`]s. The types carry facts and pure arithmetic on them, no behaviour, and no tensor.
//! Planner and ranks share facts that follow from a plan: places of rows and rows that may be
//! selected (methods of [`Plan`]), and the rank that computes each row ([`deal`]). Positions of
//! rows of pictures follow from their grids ([`place`]), which may be cut into tiles ([`tile`]).

#![forbid(unsafe_code)]

mod auxiliary;
mod cache_entries;
mod chunk_key;
pub mod deal;
pub mod exit;
mod experts;
mod frame;
mod groups;
mod hand_over;
mod kept;
mod message;
mod order;
mod phase;
mod picture;
mod pieces;
pub mod place;
mod plan;
mod point;
mod report;
mod rows;
mod slices;
mod split_mix;
mod tier;
pub mod tile;
mod traffic;

pub use auxiliary::{Auxiliary, AuxiliaryCost, AuxiliaryPrompt, DraftModel};
pub use cache_entries::CacheEntries;
pub use chunk_key::{ChunkKey, KeySpace, NoKey};
pub use experts::ExpertSizes;
pub use frame::{HEADER_BYTES, PROTOCOL_VERSION, checksum, decode_frame, encode_frame};
pub use hand_over::HandOver;
pub use message::{Error, MESSAGE_LIMIT_BYTES, Result, decode, encode, within_limit};
pub use order::Order;
pub use phase::Phase;
pub use picture::{PATCHES_AT_ONCE, PIXEL_BYTES, Picture, Pixels, packs};
pub use pieces::{PIECE_ROWS, PromptPiece, prompt_pieces};
pub use plan::{Around, Chunk, Continues, LookAhead, Plan, Returns, Sampling, Source};
pub use point::{LOOK_TILE_ROWS, PointShape, TowerPoints, Word};
pub use report::{
    ChunkCacheReport, DeviceMemory, DrawnToken, Event, Evicted, FromStore, KeptRows, Logprobs, Outcome, RankReport,
    Refusal, ScoredQuery, ScoredToken, Sharpest, Span, StepReport,
};
pub use slices::Slices;
pub use split_mix::SplitMix64;
pub use tier::{StoreError, StoreOperation, StoreReport, Tier};
pub use traffic::{Collective, Traffic, TrafficEntry};
/// A plan's data on its method and its eviction.
pub use tributary_methods::{
    Activations, Anchors, Ape, AuxiliaryReading, CHUNKS_ALONE, COST_LETTERS, Claim, Command, Drift, DriftOf,
    DriftScore, EVICTIONS, Evict, Eviction, EvictionDescriptor, EvictionEvidence, Evidence, Exchange, Family, Heads,
    Importance, LayerBudgets, LayerSet, Layers, Layout, METHODS, Method, OrderFor, POOLED_ROWS, PREFIX_ALONE,
    PSEUDO_TOKENS, PYRAMID_BETA, Packets, Passing, PlannedMethod, Prefill, REFERENCE, Requirement, SINK_ROWS, SamKv,
    SamKvVariant, Score, Selection, TYPICAL_ROWS, TextHints, Trace, TraceHeads, WINDOW_ROWS, leading, leading_counts,
};
