//! CacheBlend: the rows whose keys or values change most once they know about other chunks.

use super::{Choice, Claim, Descriptor, Drift, InvalidOption, Method, Prefill, Selection, Wishes};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "cacheblend",
    summary: "rows whose values (or keys) change most in the first layers with the whole context in view",
    source: "CacheBlend (Yao et al. 2024)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, T rows through the first D + 1 layers (from the second on ever fewer), then n + M rows; D + ½ layers \
           of T rows of keys and values come to each rank",
    ratio: Some(0.15),
    takes: &[Choice::Ratio, Choice::DriftOf, Choice::DriftLayers],
    default_of: &[],
    samples: &["cacheblend", "cacheblend:drift-of=keys:drift-layers=2"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    let Drift { layers, .. } = wishes.drift;
    // The first layer's keys and values know nothing of other tokens, so they are as they were.
    if layers == 0 || layers >= wishes.layers {
        let most = wishes.layers.saturating_sub(1);
        let wanted = format!(
            "must be from 1 to {most}: the model has {} layers, and in the first nothing drifts",
            wishes.layers
        );
        return Err(InvalidOption { option: "--drift-layers", found: layers.to_string(), wanted });
    }
    Ok(Method::CacheBlend(wishes.drift))
}

pub(super) fn prefill(drift: Drift) -> Prefill {
    Prefill::Chunks(Selection::Drift(drift))
}
