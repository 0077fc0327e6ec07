//! One rank: the KV cache, the attentions, selectors and prefill strategies.
//!
//! The crate knows no text, no tokenizer and no clock but its own. Its input is a
//! [plan](tributary_protocol::Plan), its output token ids and a report.

mod attention;
mod chunk_cache;
mod context;
mod error;
mod evict;
mod first_token;
mod gallery;
mod handing;
#[cfg(test)]
mod kit;
mod kv;
mod layer_math;
mod load_choice;
mod loading;
mod models;
mod numbers;
mod placement;
mod sample;
mod sequence;
mod serve;
mod sight;
mod strategy;
mod timeline;

pub use chunk_cache::ChunkCache;
pub use error::{Error, Result};
pub use kv::{Block, BlockRows, LayerRows};
pub use models::Models;
pub use serve::{root_cause, serve};
