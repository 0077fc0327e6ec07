//! APE: contexts stand beside each other behind the prefix, and the query's attention to them is made as sharp as attention to one
//! sequence. Nothing is recomputed.

use super::{Ape, Choice, Claim, Descriptor, InvalidOption, Method, Prefill, Selection, Wishes};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "ape",
    summary: "nothing; chunks are parallel after the prefix; the query attends to them with a temperature and a scale",
    source: "APE (Yang et al. 2025)",
    claim: Claim::Approximate { exact_where: "for a single chunk at temperature and scale 1", exact_with: None },
    in_chunks: true,
    cost: "chunks, then M rows",
    ratio: None,
    takes: &[Choice::ApeTemperature, Choice::ApeScale],
    default_of: &[],
    samples: &["ape", "ape:temperature=0.5:scale=1.3"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    let Ape { temperature, scale } = wishes.ape;
    for (option, found) in [("--ape-temperature", temperature), ("--ape-scale", scale)] {
        if !(found > 0.0 && found.is_finite()) {
            return Err(InvalidOption { option, found: found.to_string(), wanted: "must be above 0".to_owned() });
        }
    }
    Ok(Method::Ape(wishes.ape))
}

pub(super) fn prefill(ape: Ape) -> Prefill {
    Prefill::Chunks(Selection::Parallel(ape))
}
