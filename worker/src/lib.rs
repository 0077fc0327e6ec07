//! One rank: the KV cache, the answers to what a row attends to, selectors and prefill strategies.
//!
//! Knows no text, no tokenizer and no clock but its own. Starts at a
//! [plan](tributary_protocol::Plan) and ends at token ids and a report.

mod attention;
mod chunk_cache;
mod context;
mod error;
mod evict;
mod first_token;
#[cfg(test)]
mod kit;
mod kv;
mod load_choice;
mod loading;
mod models;
mod numbers;
mod placement;
mod sample;
mod sequence;
mod serve;
mod strategy;
mod timeline;

pub use chunk_cache::ChunkCache;
pub use error::{Error, Result};
pub use kv::{Block, BlockRows, LayerRows};
pub use models::Models;
pub use serve::{root_cause, serve};
