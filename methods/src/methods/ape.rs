//! APE: contexts stand in parallel after the prefix, and the query's attention to them is sharpened
//! to that of one sequence. Nothing is recomputed.

use std::ops::Bound::{Excluded, Unbounded};

use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::prefill::{Prefill, Selection};
use crate::selector::nothing;
use crate::terms::Ape;

static TEMPERATURE: MethodOption = MethodOption {
    key: "temperature",
    value: "T",
    kind: Kind::Number(Excluded(0.0), Unbounded),
    usual: Usual::Value("0.9"),
    help: "Temperature, by which the attention scores of context rows are divided, above 0",
};

static SCALE: MethodOption = MethodOption {
    key: "scale",
    value: "S",
    kind: Kind::Number(Excluded(0.0), Unbounded),
    usual: Usual::Value("0.9"),
    help: "Factor of the context's log-sum-exp, times the temperature, above 0",
};

/// The declaration.
pub static APE: Method = Method {
    name: "ape",
    summary: "nothing; chunks are parallel after the prefix; the query attends to them with a temperature and a scale",
    source: "APE (Yang et al. 2025)",
    claim: Claim::Approximate { exact_where: "for a single chunk at temperature and scale 1", exact_with: None },
    cost: "chunks, then M rows",
    ratio: None,
    options: &[&TEMPERATURE, &SCALE],
    requires: None,
    default_of: &[],
    samples: &["ape", "ape:temperature=0.5:scale=1.3"],
    prefill,
    selector: Some(|_| Box::new(nothing)),
};

fn prefill(options: &mut Options, _: ModelFacts) -> Result<Prefill, InvalidOption> {
    let ape = Ape { temperature: options.usual(&TEMPERATURE), scale: options.usual(&SCALE) };
    Ok(Prefill::Chunks(Selection::Parallel(ape)))
}
