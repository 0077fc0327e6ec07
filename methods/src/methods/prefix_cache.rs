//! Exact prefix cache: what most servers have (vLLM's automatic prefix caching, SGLang's radix
//! cache). It is the exact rival of methods that reuse chunks at any place.

use crate::method::{Claim, Command, Method};
use crate::prefill::Prefill;

/// The declaration.
pub static PREFIX_CACHE: Method = Method {
    name: "prefix-cache",
    summary: "the prompt after its longest cached prefix, computed on one rank",
    source: "SGLang (2312.07104), vLLM (2309.06180)",
    claim: Claim::Exact,
    cost: "N - p rows and (N² - p²)/2 pairs on one rank, where the first p rows are cached; no messages between ranks",
    ratio: None,
    options: &[],
    requires: None,
    default_of: &[Command::Plan],
    samples: &["prefix-cache"],
    prefill: |_, _| Ok(Prefill::Whole { reuses_prefix: true, orders_chunks: false }),
    selector: None,
};
