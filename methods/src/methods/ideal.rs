//! Ideal: the rows whose reuse changes most of the query's output, with a full prefill as the
//! oracle.
//! For studies only: it costs more than the full prefill that it is compared with, and shows the
//! limit for selectors of rows.
//!
//! A row's score is ‖Φ[t]·V[t] − Φ'[t]·V'[t]‖₂, mean over layers, where Φ is the mean attention of
//! the query's rows over heads and rows: of a full prefill, and (') of the cache as it is. Exact at
//! ratio 1.

use super::prophetkv;
use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::Options;
use crate::options::{IMPORTANCE, ORDER_FOR, RATIO, REORDER};
use crate::prefill::{Evidence, Prefill, Selection};
use crate::selector::{Candidates, Need};
use crate::terms::Layout;

/// The declaration.
pub static IDEAL: Method = Method {
    name: "ideal",
    summary: "rows whose reuse changes the query's result most, by comparison with a full prefill; for studies",
    source: "the oracle that selectors approximate",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows, T + M rows that see the whole prompt, then n + M rows: more than a full prefill",
    ratio: Some(0.15),
    options: &[&RATIO, &REORDER, &IMPORTANCE, &ORDER_FOR],
    requires: None,
    default_of: &[],
    samples: &["ideal", "ideal:reorder"],
    prefill,
    selector: Some(|_| Box::new(oracle_once)),
};

/// The query's rows in all layers, softmax over everything that they see.
fn prefill(_: &mut Options, _: ModelFacts) -> Result<Prefill, InvalidOption> {
    let evidence = Evidence { over_context: false, oracle: true, ..prophetkv::evidence(Layout::Global) };
    Ok(Prefill::Chunks(Selection::Evidence(evidence)))
}

fn oracle_once(_: &Candidates, evidence: &[f32]) -> Need {
    match evidence {
        [] => Need::Oracle,
        scores => Need::Scores(scores.to_vec()),
    }
}
