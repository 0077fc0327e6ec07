//! InfoFlow: what the query attends to in a few late layers.

use super::{
    Choice, Claim, Command, Descriptor, Evidence, Heads, InvalidOption, Layers, Layout, Method, Prefill, Score,
    Selection, Wishes,
};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "infoflow",
    summary: "rows that the query attends to in some layers",
    source: "InfoFlow",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    in_chunks: true,
    cost: "chunks, M rows up to depth 0.65, then n + M rows",
    ratio: Some(0.15),
    takes: &[
        Choice::Ratio,
        Choice::Reorder,
        Choice::OrderFor,
        Choice::Score,
        Choice::ScoreLayers,
        Choice::Layout,
        Choice::Packets,
        Choice::KeepPerChunk,
    ],
    default_of: &[Command::Prefill, Command::Bench, Command::Plan],
    samples: &["infoflow", "infoflow:score=mass:layers=0..2:layout=hl-hp", "infoflow:importance=selected"],
    make,
};

/// InfoFlow's parameters.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct InfoFlow {
    /// How attention becomes a score.
    pub score: Score,
    /// First scoring layer and the one after the last.
    pub layers: (usize, usize),
    /// RoPE positions while scoring.
    pub layout: Layout,
}

pub(super) fn prefill(&InfoFlow { score, layers: (from, to), layout }: &InfoFlow) -> Prefill {
    let layers = Layers::Some(from, to);
    let heads = Heads::Mean;
    let evidence = Evidence {
        layers,
        over_context: false,
        score,
        heads,
        layout,
        pass_divisor: None,
        trace: None,
        oracle: false,
        sparse: None,
    };
    Prefill::Chunks(Selection::Evidence(evidence))
}

/// By default the scoring layers are those from depth 0.55 to depth 0.65, rounded outwards: 22..26 of 40 layers, 2..4 of 5,
/// 0..1 of 1.
fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    let count = wishes.layers;
    let layers = match wishes.score_layers {
        None => (55 * count / 100, (65 * count).div_ceil(100)),
        Some((first, end)) if first < end && end <= count => (first, end),
        Some((first, end)) => {
            return Err(InvalidOption {
                option: "--score-layers",
                found: format!("{first}..{end}"),
                wanted: format!("must be FIRST..END with FIRST < END, and the model has {count} layers"),
            });
        }
    };
    Ok(Method::InfoFlow(InfoFlow { score: wishes.score, layers, layout: wishes.layout }))
}
