//! InfoFlow: a row's score is the attention that it receives from the query's rows in a few late
//! layers.
//! Softmax over everything they see, mean over heads, Euclidean norm (or sum) over the query's
//! rows, mean over the layers. Exact where every row is selected.

use crate::method::{Claim, Command, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::{IMPORTANCE, KEEP_PER_CHUNK, LAYERS, LAYOUT, ORDER_FOR, PACKETS, RATIO, RECENCY, REORDER, SCORE};
use crate::prefill::{Evidence, Layers, Prefill, Selection};
use crate::selector::probe_once;
use crate::terms::PictureRows;

static PICTURE_ROWS: MethodOption = MethodOption {
    key: "picture-rows",
    value: "all|never|flat",
    kind: Kind::Word(PictureRows::NAMES),
    usual: Usual::Computed("all"),
    help: "Rows of pictures: selected like others, never, or recomputed without the tower's levels, for comparison",
};

/// The declaration.
pub static INFOFLOW: Method = Method {
    name: "infoflow",
    summary: "rows that the query attends to in some layers",
    source: "InfoFlow KV (Teng et al. 2026)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows up to depth 0.65, then n + M rows",
    ratio: Some(0.15),
    options: &[
        &RATIO,
        &REORDER,
        &IMPORTANCE,
        &ORDER_FOR,
        &SCORE,
        &RECENCY,
        &LAYERS,
        &LAYOUT,
        &PACKETS,
        &KEEP_PER_CHUNK,
        &PICTURE_ROWS,
    ],
    requires: None,
    default_of: &[Command::Prefill, Command::Bench, Command::Plan],
    samples: &["infoflow", "infoflow:score=mass:layers=0..2:layout=hl-hp", "infoflow:importance=selected:recency=1.5"],
    prefill,
    selector: Some(|_| Box::new(probe_once)),
};

/// By default the scoring layers are those from depth 0.55 to depth 0.65, rounded outwards: 22..26
/// of 40 layers, 2..4 of 5, 0..1 of 1.
fn prefill(options: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    let evidence =
        Evidence::of_query(layers_between(options, [55, 65], model)?, options.usual(&SCORE), options.usual(&LAYOUT));
    let recency = options.get(&RECENCY);
    let picture_rows = options.get(&PICTURE_ROWS).unwrap_or(PictureRows::All);
    Ok(Prefill::Chunks(Selection::Evidence(Evidence { recency, picture_rows, ..evidence })))
}

/// The option's layers; by default those between two depths in per cent, rounded outwards, and one
/// without a sliding window.
///
/// # Errors
/// Returns an error if there are none, or if the model has fewer layers.
pub(super) fn layers_between(
    options: &mut Options,
    [from, to]: [usize; 2],
    model: ModelFacts,
) -> Result<Layers, InvalidOption> {
    let count = model.layers;
    let between = Layers::Some(from * count / 100, (to * count).div_ceil(100)).reaching(model).of(count);
    options.set_default(&LAYERS, &format!("{}..{}", between.start, between.end));
    let layers: Layers = options.usual(&LAYERS);
    let range = layers.of(count);
    if range.is_empty() || range.end > count {
        let wanted = format!("must be FIRST..END with FIRST < END, and the model has {count} layers");
        return Err(InvalidOption::new(&LAYERS, &format!("{}..{}", range.start, range.end), wanted));
    }
    Ok(layers)
}
