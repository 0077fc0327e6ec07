//! Ring attention: keys and values travel from rank to rank.

use super::{Claim, Command, Descriptor, Method};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "ring",
    summary: "zigzag shards of the sequence; keys and values travel during the attention to the previous ones",
    source: "Ring Attention (Liu et al. 2023), balanced",
    claim: Claim::Exact,
    in_chunks: false,
    cost: "N/W rows and N²/(2W) pairs a rank; each layer (N − N/W) rows of keys and values come to it",
    ratio: None,
    takes: &[],
    default_of: &[Command::Bench, Command::Plan],
    samples: &["ring"],
    make: |_| Ok(Method::Ring),
};
