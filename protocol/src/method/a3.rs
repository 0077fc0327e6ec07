//! A³: what the query attends to in the first layer, among the context's rows.

use super::{Choice, Claim, Descriptor, Evidence, Heads, Layers, Layout, Method, Prefill, Score, Selection};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "a3",
    summary: "rows that the query attends to in the first layer, normalised over the context",
    source: "A³",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, the attention of M rows in the first layer, then n + M rows",
    ratio: Some(0.15),
    takes: &[Choice::Ratio, Choice::Reorder, Choice::OrderFor, Choice::Layout, Choice::Packets, Choice::KeepPerChunk],
    default_of: &[],
    samples: &["a3", "a3:layout=hl-hp", "a3:reorder"],
    make: |wishes| Ok(Method::A3 { layout: wishes.layout }),
};

pub(super) fn prefill(layout: Layout) -> Prefill {
    Prefill::Chunks(Selection::Evidence(Evidence {
        layers: Layers::Some(0, 1),
        over_context: true,
        score: Score::Mass,
        heads: Heads::Sum,
        layout,
        pass_divisor: None,
        trace: None,
        oracle: false,
        sparse: None,
    }))
}
