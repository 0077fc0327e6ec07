//! Ring attention: keys and values travel from rank to rank.

use crate::method::{Claim, Command, Method};
use crate::prefill::Prefill;

/// The declaration.
pub static RING: Method = Method {
    name: "ring",
    summary: "zigzag shards of the sequence; keys and values travel during the attention to the previous ones",
    source: "Ring Attention (Liu et al. 2023), balanced",
    claim: Claim::Exact,
    cost: "N/W rows and N²/(2W) pairs a rank; it receives (N − N/W) rows of keys and values per layer",
    ratio: None,
    options: &[],
    requires: None,
    default_of: &[Command::Bench, Command::Plan],
    samples: &["ring"],
    prefill: |_, _| Ok(Prefill::Ring),
    selector: None,
};
