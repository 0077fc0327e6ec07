//! KV Packet: chunks as they are, each between trained rows that are cached with it. Nothing is recomputed.

use super::{Choice, Claim, Descriptor, Method};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "kv-packet",
    summary: "nothing; every chunk is enclosed by trained rows of an adapter, which are cached with it",
    source: "KV Packet",
    claim: Claim::Approximate {
        exact_where: "for a single chunk, of a prompt that has the adapter's rows",
        exact_with: None,
    },
    in_chunks: true,
    cost: "chunks with their rows, then M rows of the query",
    ratio: None,
    takes: &[Choice::Adapter, Choice::KeepPerChunk],
    default_of: &[],
    samples: &["kv-packet"],
    make: |_| Ok(Method::KvPacket),
};
