//! EPIC's LegoLink: the first rows of every chunk.

use std::ops::RangeInclusive;

use super::{Choice, Claim, Descriptor, InvalidOption, Method, Wishes};

/// Rows a chunk that it may be told to recompute.
const ROWS: RangeInclusive<usize> = 1..=64;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "epic",
    summary: "the first rows of every chunk but the first",
    source: "EPIC (Hu et al. 2024), LegoLink",
    claim: Claim::Approximate { exact_where: "where chunks are no longer than their rows", exact_with: None },
    in_chunks: true,
    cost: "chunks, then n + M rows",
    ratio: Some(0.15),
    takes: &[Choice::Ratio, Choice::PerChunk, Choice::Packets, Choice::KeepPerChunk],
    default_of: &[],
    samples: &["epic", "epic:rows=3"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    match wishes.per_chunk {
        Some(rows) if !ROWS.contains(&rows) => Err(InvalidOption {
            option: "--per-chunk",
            found: rows.to_string(),
            wanted: format!("must be from {} to {}", ROWS.start(), ROWS.end()),
        }),
        per_chunk => Ok(Method::Epic { per_chunk }),
    }
}
