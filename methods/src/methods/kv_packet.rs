//! KV Packet: chunks as they are, each between trained rows that are cached with it. Nothing is
//! recomputed.

use crate::method::{Claim, Method, Requirement};
use crate::options::KEEP_PER_CHUNK;
use crate::prefill::{Prefill, Selection};
use crate::selector::nothing;

/// The declaration.
pub static KV_PACKET: Method = Method {
    name: "kv-packet",
    summary: "nothing; every chunk is enclosed by trained rows of an adapter, which are cached with it",
    source: "KV Packet",
    claim: Claim::Approximate {
        exact_where: "for a single chunk, of a prompt that has the adapter's rows",
        exact_with: None,
    },
    cost: "chunks with their rows, then M rows of the query",
    ratio: None,
    options: &[&KEEP_PER_CHUNK],
    requires: Some(Requirement::Adapter),
    default_of: &[],
    samples: &["kv-packet"],
    prefill: |_, _| Ok(Prefill::Chunks(Selection::Nothing)),
    selector: Some(|_| Box::new(nothing)),
};
