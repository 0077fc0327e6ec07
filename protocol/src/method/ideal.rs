//! Ideal: the rows whose reuse changes most what the query takes from them, with a full prefill as the oracle. For studies only: it
//! costs more than the full prefill that it is measured against, and shows what a selector of rows can reach.

use super::{Choice, Claim, Descriptor, Evidence, Layout, Method, Prefill, Selection, prophetkv};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "ideal",
    summary: "rows whose reuse changes the query's result most, by comparison with a full prefill; for studies",
    source: "the oracle that selectors approximate",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, M rows, T + M rows that see the whole prompt, then n + M rows: more than a full prefill",
    ratio: Some(0.15),
    takes: &[Choice::Ratio, Choice::Reorder, Choice::OrderFor],
    default_of: &[],
    samples: &["ideal", "ideal:reorder"],
    make: |_| Ok(Method::Ideal),
};

/// The query's rows in all layers, softmax over everything that they see.
pub(super) fn prefill() -> Prefill {
    let evidence = Evidence { over_context: false, oracle: true, ..prophetkv::evidence(Layout::Global) };
    Prefill::Chunks(Selection::Evidence(evidence))
}
