//! A³: a row's score is Σ over heads and query rows of softmax(Q_query K_docᵀ/√D) in the first
//! layer, softmax over the context. Exact where every row is selected.

use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::Options;
use crate::options::{IMPORTANCE, KEEP_PER_CHUNK, LAYOUT, ORDER_FOR, PACKETS, RATIO, REORDER};
use crate::prefill::{Evidence, Heads, Layers, Prefill, Selection};
use crate::selector::probe_once;
use crate::terms::Score;

/// The declaration.
pub static A3: Method = Method {
    name: "a3",
    summary: "rows that the query attends to in the first layer, normalised over the context",
    source: "A³ (Zhou et al. 2025)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, the attention of M rows in the first layer, then n + M rows",
    ratio: Some(0.15),
    options: &[&RATIO, &REORDER, &IMPORTANCE, &ORDER_FOR, &LAYOUT, &PACKETS, &KEEP_PER_CHUNK],
    requires: None,
    default_of: &[],
    samples: &["a3", "a3:layout=hl-hp", "a3:reorder"],
    prefill,
    selector: Some(|_| Box::new(probe_once)),
};

/// The first layer, or those up to the first one without a sliding window.
fn prefill(options: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    let first_layer = Evidence::of_query(Layers::Some(0, 1).reaching(model), Score::Mass, options.usual(&LAYOUT));
    let evidence = Evidence { over_context: true, heads: Heads::Sum, ..first_layer };
    Ok(Prefill::Chunks(Selection::Evidence(evidence)))
}
