//! Star attention: blocks after an anchor, and a query that sees them all.

use crate::method::{Claim, Method};
use crate::options::BLOCK;
use crate::prefill::Prefill;

/// The declaration.
pub static STAR: Method = Method {
    name: "star",
    summary: "blocks of the sequence, each computed with the first one before it; the query then sees all of them",
    source: "Star Attention (Acharya et al. 2024)",
    claim: Claim::Approximate { exact_where: "for one block or two", exact_with: Some(":block=1000000") },
    cost: "up to 2N/W rows a rank, of which each sees its block and the first one; then M rows, whose queries and partial outputs travel",
    ratio: None,
    options: &[&BLOCK],
    requires: None,
    default_of: &[],
    samples: &["star", "star:block=20"],
    prefill: |options, _| Ok(Prefill::Anchored { block_rows: options.get(&BLOCK), passing: None }),
    selector: None,
};
