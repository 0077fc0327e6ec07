//! CacheClip: what a small model beside the main one attends to in its last layer, in windows.

use super::{Choice, Claim, Descriptor, Method, Prefill, Selection};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "cacheclip",
    summary: "rows that the query attends to in a small auxiliary model, chunk by chunk, in windows of 8",
    source: "CacheClip (Yang et al. 2025)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, and beside them the small model over every chunk but the first with M rows on rank 0's host, then at most n + M rows",
    ratio: Some(0.2),
    takes: &[Choice::Ratio, Choice::AuxModel, Choice::KeepPerChunk],
    default_of: &[],
    samples: &["cacheclip"],
    make: |_| Ok(Method::CacheClip),
};

pub(super) fn prefill() -> Prefill {
    Prefill::Chunks(Selection::Auxiliary)
}
