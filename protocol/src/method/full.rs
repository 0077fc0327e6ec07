//! Full prefill on one rank: the reference.

use super::{Claim, Command, Descriptor, Method};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "full",
    summary: "the whole prompt, computed on one rank",
    source: "the reference",
    claim: Claim::Exact,
    in_chunks: false,
    cost: "N rows and N²/2 pairs on one rank; nothing moves",
    ratio: None,
    takes: &[],
    default_of: &[Command::Bench, Command::Plan],
    samples: &["full"],
    make: |_| Ok(Method::Full),
};
