//! ContextPilot-like: documents come in the order in which most of the prompt's prefix is cached.
//! So an exact prefix cache hits although requests share documents in other orders. The paper's
//! removal of repeated documents and its scheduling of requests are left out.

use crate::method::{Claim, Method};
use crate::prefill::Prefill;

/// The declaration.
pub static CONTEXT_PILOT: Method = Method {
    name: "context-pilot-like",
    summary: "as prefix-cache, with documents in the order of which most is cached",
    source: "after ContextPilot (2511.03475)",
    claim: Claim::Approximate { exact_where: "where no document moves", exact_with: None },
    cost: "N - p rows and (N² - p²)/2 pairs on one rank, where the first p rows are cached; no messages between ranks",
    ratio: None,
    options: &[],
    requires: None,
    default_of: &[],
    samples: &["context-pilot-like"],
    prefill: |_, _| Ok(Prefill::Whole { reuses_prefix: true, orders_chunks: true }),
    selector: None,
};
