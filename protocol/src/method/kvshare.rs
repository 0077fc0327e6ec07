//! KVShare: the rows whose values change most once they know about other chunks, weighted by the attention that the context pays them.

use super::{Choice, Claim, Descriptor, Drift, DriftOf, DriftScore, InvalidOption, Method, Prefill, Selection, Wishes};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "kvshare",
    summary: "rows whose values change most in the second layer, weighted by the attention of all context rows to them",
    source: "KVShare (Yang et al. 2025)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, T rows through the first two layers and T²/2 pairs read once more, then n + M rows; two layers of T \
           rows of keys and values come to each rank",
    ratio: Some(0.20),
    takes: &[Choice::Ratio],
    default_of: &[],
    samples: &["kvshare"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    // The first layer's values know nothing of other tokens, so there must be a second one.
    match wishes.layers {
        0 | 1 => Err(InvalidOption {
            option: "--method",
            found: "kvshare".to_owned(),
            wanted: format!(
                "must be another method: the model has {} layer, and in the first nothing drifts",
                wishes.layers
            ),
        }),
        _ => Ok(Method::KvShare),
    }
}

pub(super) fn prefill() -> Prefill {
    Prefill::Chunks(Selection::Drift(Drift { of: DriftOf::Values, layers: 1, score: DriftScore::Attended }))
}
