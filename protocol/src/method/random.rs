//! Rows at random: the control.

use super::{Choice, Claim, Descriptor, Method};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "random",
    summary: "rows drawn at random",
    source: "the control",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, then n + M rows",
    ratio: Some(0.15),
    takes: &[Choice::Ratio, Choice::Packets, Choice::KeepPerChunk],
    default_of: &[],
    samples: &["random"],
    make: |wishes| Ok(Method::Random { seed: wishes.seed }),
};
