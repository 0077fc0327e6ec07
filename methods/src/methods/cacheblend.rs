//! CacheBlend: recomputes the rows whose keys or values drift most from their cached ones once they
//! see the whole context. Exact at ratio 1.

use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::RATIO;
use crate::prefill::{Prefill, Selection};
use crate::selector::drift_once;
use crate::terms::{Drift, DriftOf};

static OF: MethodOption = MethodOption {
    key: "drift-of",
    value: "values|keys",
    kind: Kind::Word(DriftOf::NAMES),
    usual: Usual::Value("values"),
    help: "Tensor whose change from the cached one is measured",
};

static DRIFT_LAYERS: MethodOption = MethodOption {
    key: "drift-layers",
    value: "N",
    kind: Kind::Count(1..=usize::MAX),
    usual: Usual::Value("1"),
    help: "Layers after the first in which rows are compared; with several, each passes fewer rows on",
};

/// The declaration.
pub static CACHEBLEND: Method = Method {
    name: "cacheblend",
    summary: "rows whose values (or keys) change most in the first layers with the whole context in view",
    source: "CacheBlend (Yao et al. 2024)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, T rows through the first D + 1 layers (from the second on ever fewer), then n + M rows; D + ½ layers \
           of T rows of keys and values come to each rank",
    ratio: Some(0.15),
    options: &[&RATIO, &OF, &DRIFT_LAYERS],
    requires: None,
    default_of: &[],
    samples: &["cacheblend", "cacheblend:drift-of=keys:drift-layers=2"],
    prefill,
    selector: Some(|_| Box::new(drift_once)),
};

fn prefill(options: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    let layers: usize = options.usual(&DRIFT_LAYERS);
    // The first layer's keys and values do not depend on other tokens, so they are unchanged.
    if layers >= model.layers {
        let most = model.layers.saturating_sub(1);
        let wanted =
            format!("must be from 1 to {most}: the model has {} layers, and in the first nothing drifts", model.layers);
        return Err(InvalidOption::new(&DRIFT_LAYERS, &layers, wanted));
    }
    let drift = Drift { of: options.usual(&OF), ..model.drift(layers) };
    Ok(Prefill::Chunks(Selection::Drift(drift)))
}
