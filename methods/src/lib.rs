//! Prefill methods and evictions: the nature of each, its options, the data that a plan carries of
//! it, and its selection of rows.
//!
//! Everything here is pure: no tensor, no clock, no file. A method is one file in `methods/`. A new
//! one needs that file and a row in `methods/mod.rs`; command line, files, HTTP, reports, planner
//! and tests read its declaration ([`Method`]).

#![forbid(unsafe_code)]

mod evict;
mod family;
mod layer_set;
mod method;
mod methods;
mod model_facts;
mod names;
mod option;
mod options;
mod planned;
mod prefill;
mod rows;
mod selector;
mod spec;
mod terms;
#[cfg(test)]
mod tests;

pub use evict::{
    EVICTIONS, Evict, EvictChoice, Eviction, EvictionDescriptor, EvictionEvidence, Keep, KeepPerChunk, LayerBudgets,
    POOLED_ROWS, PSEUDO_TOKENS, PYRAMID_BETA, SINK_ROWS, WINDOW_ROWS,
};
pub use family::Family;
pub use layer_set::LayerSet;
pub use method::{COST_LETTERS, Claim, Command, InvalidOption, Method, Requirement};
pub use methods::{CHUNKS_ALONE, METHODS, PREFIX_ALONE, REFERENCE};
pub use model_facts::ModelFacts;
pub use option::{Kind, MethodOption, Options, Usual};
pub use options::{
    ALPHA, EVICT, EXCHANGE, FIRST, IMPORTANCE, KEEP, KEEP_ORDER, KEEP_PER_CHUNK, LAYERS, ORDER_FOR, PACKETS, RATIO,
    REORDER, REQUEST, SHARPEST, exchange_named,
};
pub use planned::PlannedMethod;
pub use prefill::{Activations, AuxiliaryReading, Evidence, Heads, Layers, Prefill, Selection};
pub use rows::{leading, leading_counts, top_rows};
pub use selector::{Candidates, Need, Selector, TextHints};
pub use spec::{MethodSpec, spec_list, spec_parts};
pub use terms::{
    Anchors, Ape, Drift, DriftOf, DriftScore, Excerpt, Exchange, Importance, Layout, OrderFor, Packets, Passing,
    PictureRows, SamKv, SamKvVariant, Score, TYPICAL_ROWS, Trace, TraceHeads,
};
