//! Trace (ours): rows that depend on each other are followed from one to the next wherever their chunks stand, and chunks are put in the
//! order in which they depend on each other. Its formulas stand in `worker/src/select/trace`.

use super::{
    Choice, Claim, Descriptor, Evidence, InvalidOption, Layout, Method, Prefill, Selection, Trace, Wishes, prophetkv,
};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "trace",
    summary: "rows that the query attends to and rows these depend on, in any order; chunks are sorted by dependence",
    source: "ours",
    claim: Claim::Approximate { exact_where: "at ratio 1, where no chunk moves", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, M rows, n/3 to n/2 rows that see all T keys and are read one by one, then n + M rows",
    ratio: Some(0.15),
    takes: &[
        Choice::Ratio,
        Choice::TraceAlpha,
        Choice::TraceHeads,
        Choice::KeepOrder,
        Choice::OrderFor,
        Choice::Packets,
    ],
    default_of: &[],
    samples: &["trace", "trace:alpha=0.002", "trace:alpha=0.002:sharpest=0.25", "trace:keep-order"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    let usual = Trace::default();
    let trace = Trace {
        alpha: wishes.trace_alpha.unwrap_or(usual.alpha),
        keep_order: wishes.keep_order,
        heads: wishes.trace_heads,
        ..usual
    };
    if trace.alpha > 0.0 && trace.alpha <= 1.0 {
        return Ok(Method::Trace(trace));
    }
    let wanted = "must be above 0 and at most 1, as a share of a row's attention is".to_owned();
    Err(InvalidOption { option: "--trace-alpha", found: trace.alpha.to_string(), wanted })
}

pub(super) fn prefill(trace: Trace) -> Prefill {
    let evidence = Evidence { trace: Some(trace), ..prophetkv::evidence(Layout::Global) };
    Prefill::Chunks(Selection::Evidence(evidence))
}
