//! Ring attention the other way round: queries travel from rank to rank, keys and values stay.

use super::{Claim, Descriptor, Method};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "pass-q",
    summary: "zigzag shards of the sequence; queries travel and partial results return during the next attention",
    source: "Context Parallelism for Scalable Million-Token Inference (Yang et al. 2024), pass-Q",
    claim: Claim::Exact,
    in_chunks: false,
    cost: "N/W rows and N²/(2W) pairs a rank; each layer (N − N/W) rows of queries and as many of partial outputs come to it",
    ratio: None,
    takes: &[],
    default_of: &[],
    samples: &["pass-q"],
    make: |_| Ok(Method::PassQ),
};
