//! Compression of chunks before they were cached.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_methods::KEEP_PER_CHUNK;
use tributary_planner::{ModelShape, window_of};
use tributary_protocol::{Chunk, Plan};

/// The compression of a request's chunks: facts of its plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompressedRow {
    /// Method that chose the tokens.
    pub method: &'static str,
    /// Last tokens of a chunk whose attention chooses the kept ones, if the method has a window: at
    /// most half of the kept number. Rows of an adapter after the tokens replace them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Tokens that each KV head of each layer keeps of every chunk, in the request's own order.
    pub kept_tokens: Vec<usize>,
    /// Rows of the context, those around tokens included.
    pub rows: usize,
    /// Rows of them that each KV head of each layer keeps.
    pub kept_rows: usize,
    /// Bytes of keys and values of the context, if chunks kept everything.
    pub bytes_before: u64,
    /// Bytes of the kept rows, with the rows' numbers: the cached bytes.
    pub bytes_kept: u64,
}

/// The compression of a plan's chunks; `None` if they keep everything.
pub(super) fn compressed(plan: &Plan, shape: &ModelShape) -> Option<CompressedRow> {
    let compress = plan.chunks.iter().find_map(|chunk| chunk.compress.as_ref())?;
    let kept_tokens = |chunk: &Chunk| chunk.compress.as_ref().map_or(chunk.ids.len(), |compress| compress.keep);
    Some(CompressedRow {
        method: compress.descriptor().name,
        window: window_of(compress),
        kept_tokens: plan.chunks.iter().map(kept_tokens).collect(),
        rows: plan.context_rows(),
        kept_rows: plan.chunks.iter().map(Chunk::held_rows).sum(),
        bytes_before: plan.context_rows() as u64 * shape.kv_bytes(),
        bytes_kept: plan.chunks.iter().map(|chunk| shape.chunk_bytes(chunk)).sum(),
    })
}

impl CompressedRow {
    /// The same as a note for readers.
    pub(super) fn note(&self) -> String {
        let Self { method, kept_tokens, rows, kept_rows, bytes_before, bytes_kept, .. } = self;
        let (least, most) = (kept_tokens.iter().min().unwrap_or(&0), kept_tokens.iter().max().unwrap_or(&0));
        let tokens = if least == most { format!("{most}") } else { format!("{least} to {most}") };
        format!(
            "{}: {method} keeps {tokens} tokens of every chunk in each layer and KV head, {kept_rows} of {rows} rows, {bytes_kept} of \
             {bytes_before} bytes in all",
            KEEP_PER_CHUNK.key
        )
    }
}
