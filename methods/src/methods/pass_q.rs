//! Ring attention the other way round: queries travel from rank to rank, keys and values stay.

use crate::method::{Claim, Method};
use crate::prefill::Prefill;

/// The declaration.
pub static PASS_Q: Method = Method {
    name: "pass-q",
    summary: "zigzag shards of the sequence; queries travel and partial results return during the next attention",
    source: "Context Parallelism for Scalable Million-Token Inference (Yang et al. 2024), pass-Q",
    claim: Claim::Exact,
    cost: "N/W rows and N²/(2W) pairs a rank; it receives (N − N/W) rows of queries and as many of \
           partial outputs per layer",
    ratio: None,
    options: &[],
    requires: None,
    default_of: &[],
    samples: &["pass-q"],
    prefill: |_, _| Ok(Prefill::Queries),
    selector: None,
};
