//! Attention times expected drift (ours): a row counts by the query's attention to it in the later
//! layers, times the drift that its place in its chunk lets expect. Exact where every row is
//! selected.
//!
//! To first order the query's output changes by Σ_t A[t] · ΔV[t] if stale rows become fresh. A[t]
//! is measured as InfoFlow does, over more layers, and the last rows of the query count most, since
//! they write the answer. ΔV[t] is not known before a recompute, but it falls with the place j of
//! row t in its chunk: a row at place j has j rows of its own chunk to attend to.
//! score[t] = A[t] · h / (h + j).

use super::infoflow::layers_between;
use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::{IMPORTANCE, KEEP_PER_CHUNK, LAYERS, LAYOUT, ORDER_FOR, PACKETS, RATIO, RECENCY, REORDER, SCORE};
use crate::prefill::{Evidence, Prefill, Selection};
use crate::selector::{Candidates, Need, Selector};

static HALF: MethodOption = MethodOption {
    key: "half",
    value: "N",
    kind: Kind::Count(1..=u32::MAX as usize),
    usual: Usual::Value("32"),
    help: "Offset in its chunk, in tokens, at which a token's attention counts half",
};

/// The declaration.
pub static ATTN_DRIFT: Method = Method {
    name: "attn-drift",
    summary: "rows that the end of the query attends to in the later layers, early rows of chunks first, as they drift most",
    source: "ours",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows up to depth 0.95, then n + M rows",
    ratio: Some(0.15),
    options: &[
        &RATIO,
        &REORDER,
        &IMPORTANCE,
        &ORDER_FOR,
        &SCORE,
        &RECENCY,
        &LAYERS,
        &HALF,
        &LAYOUT,
        &PACKETS,
        &KEEP_PER_CHUNK,
    ],
    requires: None,
    default_of: &[],
    samples: &[
        "attn-drift",
        "attn-drift:recency=0.5:half=2",
        "attn-drift:score=mass:layers=0..2:layout=hl-tp",
        "attn-drift:reorder",
    ],
    prefill,
    selector: Some(selector),
};

/// By default the scoring layers are those from depth 0.4 to depth 0.95, rounded outwards: 9..23 of
/// 24 layers, 16..38 of 40, 2..5 of 5, 0..1 of 1.
fn prefill(options: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    options.set_default(&RECENCY, "2");
    let (half, recency) = (Some(options.usual(&HALF)), options.get(&RECENCY));
    let evidence =
        Evidence::of_query(layers_between(options, [40, 95], model)?, options.usual(&SCORE), options.usual(&LAYOUT));
    Ok(Prefill::Chunks(Selection::Evidence(Evidence { half, recency, ..evidence })))
}

fn selector(selection: Selection) -> Box<dyn Selector> {
    let Selection::Evidence(Evidence { half: Some(half), .. }) = selection else {
        unreachable!("attn-drift resolves to attention and a place, not to {selection:?}");
    };
    Box::new(move |candidates: &Candidates, evidence: &[f32]| match evidence {
        [] => Need::Probe,
        attention => Need::Scores(weighted(candidates, attention, half)),
    })
}

/// Attention times the expected drift, one number a context row.
fn weighted(candidates: &Candidates, attention: &[f32], half: u32) -> Vec<f32> {
    let mut scores = attention.to_vec();
    for &(first, length) in &candidates.chunks {
        let from = (first - candidates.first_row) as usize;
        for (place, score) in scores[from..from + length].iter_mut().enumerate() {
            *score *= half as f32 / (half as f32 + place as f32);
        }
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::TextHints;

    #[test]
    fn attention_counts_half_at_the_given_place_of_every_chunk() {
        let candidates = Candidates {
            first_row: 2,
            context: 7,
            rows: (2..9).collect(),
            chunks: vec![(5, 4), (2, 3)], // in the order of the layout, which is not the request's
            budget: 3,
            measured: 0,
            query: 3,
            seed: 0,
            auxiliary: Vec::new(),
            text: TextHints::default(),
        };
        let scores = weighted(&candidates, &[1.0; 7], 2);
        assert_eq!(scores, [1.0, 2.0 / 3.0, 0.5, 1.0, 2.0 / 3.0, 0.5, 0.4]);
    }
}
