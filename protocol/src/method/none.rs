//! Naive reuse: chunks as they are.

use super::{Choice, Claim, Descriptor, Method};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "none",
    summary: "nothing; chunks are used as cached",
    source: "the lower bound",
    claim: Claim::Approximate { exact_where: "for a single chunk", exact_with: None },
    in_chunks: true,
    cost: "chunks, then M rows of the query",
    ratio: None,
    takes: &[Choice::Packets, Choice::KeepPerChunk],
    default_of: &[],
    samples: &["none"],
    make: |_| Ok(Method::None),
};
