//! EPIC's LegoLink: the first rows of every chunk but the first, where a chunk's own attention sink
//! grew. Exact where a chunk's length does not exceed its selected rows.
//! Budget that short chunks leave is not spent.

use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::{KEEP_PER_CHUNK, PACKETS, RATIO};
use crate::prefill::{Prefill, Selection};
use crate::rows::leading;
use crate::selector::{Candidates, Need, Selector};

static ROWS: MethodOption = MethodOption {
    key: "rows",
    value: "N",
    kind: Kind::Count(1..=64),
    usual: Usual::Computed("the budget divided evenly"),
    help: "Rows to recompute of each chunk, 1 to 64, in place of a ratio",
};

/// The declaration.
pub static EPIC: Method = Method {
    name: "epic",
    summary: "the first rows of every chunk but the first",
    source: "EPIC (Hu et al. 2024), LegoLink",
    claim: Claim::Approximate { exact_where: "where chunks are no longer than their rows", exact_with: None },
    cost: "chunks, then n + M rows",
    ratio: Some(0.15),
    options: &[&RATIO, &ROWS, &PACKETS, &KEEP_PER_CHUNK],
    requires: None,
    default_of: &[],
    samples: &["epic", "epic:rows=3"],
    prefill,
    selector: Some(selector),
};

fn prefill(options: &mut Options, _: ModelFacts) -> Result<Prefill, InvalidOption> {
    Ok(Prefill::Chunks(Selection::Leading { per_chunk: options.get(&ROWS) }))
}

fn selector(selection: Selection) -> Box<dyn Selector> {
    let Selection::Leading { per_chunk } = selection else {
        unreachable!("epic resolves to leading rows, not to {selection:?}");
    };
    let first_rows =
        move |candidates: &Candidates, _: &[f32]| Need::Rows(leading(&candidates.chunks, candidates.budget, per_chunk));
    Box::new(first_rows)
}
