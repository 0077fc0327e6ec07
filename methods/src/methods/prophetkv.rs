//! ProphetKV: a row's score is the attention that it receives from the query's rows in all layers.
//! Softmax over the context, mean over heads, rows and layers. Exact where every row is selected.

use crate::method::{Claim, Method};
use crate::options::{IMPORTANCE, KEEP_PER_CHUNK, LAYOUT, ORDER_FOR, PACKETS, RATIO, REORDER};
use crate::prefill::{Evidence, Layers, Prefill, Selection};
use crate::selector::{Candidates, Need};
use crate::terms::{Layout, Score};

/// The declaration.
pub static PROPHETKV: Method = Method {
    name: "prophetkv",
    summary: "rows that the query attends to in all layers, normalised over the context",
    source: "ProphetKV (Wang et al. 2026)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows, then n + M rows",
    ratio: Some(0.20),
    options: &[&RATIO, &REORDER, &IMPORTANCE, &ORDER_FOR, &LAYOUT, &PACKETS, &KEEP_PER_CHUNK],
    requires: None,
    default_of: &[],
    samples: &["prophetkv", "prophetkv:layout=tl-tp", "prophetkv:reorder"],
    prefill: |options, _| Ok(Prefill::Chunks(Selection::Evidence(evidence(options.usual(&LAYOUT))))),
    selector: Some(|_| Box::new(mean_over_query)),
};

/// The probe returns the sum over the query's rows; the selector divides it to the mean.
pub(super) fn evidence(layout: Layout) -> Evidence {
    Evidence { over_context: true, ..Evidence::of_query(Layers::All, Score::Mass, layout) }
}

fn mean_over_query(candidates: &Candidates, evidence: &[f32]) -> Need {
    match evidence {
        [] => Need::Probe,
        sums => Need::Scores(sums.iter().map(|sum| sum / candidates.query as f32).collect()),
    }
}
