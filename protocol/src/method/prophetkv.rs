//! ProphetKV: what the query attends to in all layers, among the context's rows.

use super::{Choice, Claim, Descriptor, Evidence, Heads, Layers, Layout, Method, Prefill, Score, Selection};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "prophetkv",
    summary: "rows that the query attends to in all layers, normalised over the context",
    source: "ProphetKV",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, M rows, then n + M rows",
    ratio: Some(0.20),
    takes: &[Choice::Ratio, Choice::Reorder, Choice::OrderFor, Choice::Layout, Choice::Packets, Choice::KeepPerChunk],
    default_of: &[],
    samples: &["prophetkv", "prophetkv:layout=tl-tp", "prophetkv:reorder"],
    make: |wishes| Ok(Method::ProphetKv { layout: wishes.layout }),
};

/// The probe gives the sum over the query's rows; the selector makes the mean of it.
pub(super) fn evidence(layout: Layout) -> Evidence {
    Evidence {
        layers: Layers::All,
        over_context: true,
        score: Score::Mass,
        heads: Heads::Mean,
        layout,
        pass_divisor: None,
        trace: None,
        oracle: false,
        sparse: None,
    }
}

pub(super) fn prefill(layout: Layout) -> Prefill {
    Prefill::Chunks(Selection::Evidence(evidence(layout)))
}
