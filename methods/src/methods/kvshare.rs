//! KVShare: a row's score is Σ over context rows n of A[n,t] · ‖V_t − cached V_t‖₁ in the second
//! layer, after a first one in which all candidates have seen the whole context; A is the mean over
//! heads. Exact at ratio 1.

use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::Options;
use crate::options::RATIO;
use crate::prefill::{Prefill, Selection};
use crate::selector::drift_once;
use crate::terms::{Drift, DriftScore};

/// The declaration.
pub static KVSHARE: Method = Method {
    name: "kvshare",
    summary: "rows whose values change most in the second layer, weighted by the attention of all context rows to them",
    source: "KVShare (Yang et al. 2025)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, T rows through the first two layers and T²/2 pairs read once more, then n + M rows; two layers of T \
           rows of keys and values come to each rank",
    ratio: Some(0.20),
    options: &[&RATIO],
    requires: None,
    default_of: &[],
    samples: &["kvshare"],
    prefill,
    selector: Some(|_| Box::new(drift_once)),
};

fn prefill(_: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    // The first layer's values do not depend on other tokens, so a second layer is needed.
    if model.layers < 2 {
        let wanted =
            format!("must be another method: the model has {} layer, and in the first nothing drifts", model.layers);
        return Err(InvalidOption { found: String::new(), wanted });
    }
    Ok(Prefill::Chunks(Selection::Drift(Drift { score: DriftScore::Attended, ..model.drift(1) })))
}
