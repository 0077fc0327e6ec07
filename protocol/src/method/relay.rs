//! Relay (ours): what the query attends to, and what that attends to once it is recomputed.

use super::{Choice, Claim, Command, Descriptor, Evidence, Layout, Method, Prefill, Selection, prophetkv};

/// The first hop recomputes the budget's part with this divisor.
const HOP_DIVISOR: usize = 3;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "relay",
    summary: "rows that the query attends to, and rows that those attend to after a provisional recompute",
    source: "ours",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, M rows, n/3 rows, then n + M rows",
    ratio: Some(0.15),
    takes: &[Choice::Ratio, Choice::Reorder, Choice::OrderFor, Choice::Layout, Choice::Packets, Choice::KeepPerChunk],
    default_of: &[Command::Plan],
    samples: &["relay", "relay:layout=hl-tp", "relay:reorder", "relay:reorder:order-for=selection"],
    make: |wishes| Ok(Method::Relay { layout: wishes.layout }),
};

pub(super) fn prefill(layout: Layout) -> Prefill {
    let evidence = Evidence { pass_divisor: Some(HOP_DIVISOR), ..prophetkv::evidence(layout) };
    Prefill::Chunks(Selection::Evidence(evidence))
}
