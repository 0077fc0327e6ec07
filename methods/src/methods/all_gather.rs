//! Sequence parallelism by gathering every layer's keys and values.

use crate::method::{Claim, Command, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::prefill::Prefill;

static HEADS: MethodOption = MethodOption {
    key: "heads",
    value: "N",
    kind: Kind::Count(1..=usize::MAX),
    usual: Usual::Computed("all"),
    help: "KV heads gathered at a time",
};

/// The declaration.
pub static ALL_GATHER: Method = Method {
    name: "all-gather",
    summary: "contiguous parts of the sequence; each layer's keys and values are gathered on every rank",
    source: "common practice; one head at a time it is the baseline of published comparisons",
    claim: Claim::Exact,
    cost: "N/W rows a rank, N²/(2W) pairs in the mean and up to twice as many; a rank receives (N − N/W) \
           rows of keys and values per layer",
    ratio: None,
    options: &[&HEADS],
    requires: None,
    default_of: &[Command::Bench, Command::Plan],
    samples: &["all-gather", "all-gather:heads=1"],
    prefill,
    selector: None,
};

fn prefill(options: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    let heads_per_gather: Option<usize> = options.get(&HEADS);
    match heads_per_gather {
        Some(heads) if heads > model.kv_heads => {
            let wanted = format!("must be from 1 to the model's {} KV heads", model.kv_heads);
            Err(InvalidOption::new(&HEADS, &heads, wanted))
        }
        _ => Ok(Prefill::Gathered { heads_per_gather }),
    }
}
