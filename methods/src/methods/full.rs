//! Full prefill on one rank: the reference.

use crate::method::{Claim, Command, Method};
use crate::prefill::Prefill;

/// The declaration.
pub static FULL: Method = Method {
    name: "full",
    summary: "the whole prompt, computed on one rank",
    source: "the reference",
    claim: Claim::Exact,
    cost: "N rows and N²/2 pairs on one rank; no messages between ranks",
    ratio: None,
    options: &[],
    requires: None,
    default_of: &[Command::Bench, Command::Plan],
    samples: &["full"],
    prefill: |_, _| Ok(Prefill::Whole { reuses_prefix: false, orders_chunks: false }),
    selector: None,
};
