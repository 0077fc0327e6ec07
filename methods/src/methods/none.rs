//! Naive reuse: chunks as they are.

use crate::method::{Claim, Method};
use crate::options::{KEEP_PER_CHUNK, PACKETS};
use crate::prefill::{Prefill, Selection};
use crate::selector::nothing;

/// The declaration.
pub static NONE: Method = Method {
    name: "none",
    summary: "nothing; chunks are used as cached",
    source: "the lower bound",
    claim: Claim::Approximate { exact_where: "for a single chunk", exact_with: None },
    cost: "chunks, then M rows of the query",
    ratio: None,
    options: &[&PACKETS, &KEEP_PER_CHUNK],
    requires: None,
    default_of: &[],
    samples: &["none"],
    prefill: |_, _| Ok(Prefill::Chunks(Selection::Nothing)),
    selector: Some(|_| Box::new(nothing)),
};
