//! QCFuse-like: a few anchors stand for each chunk while the query ranks chunks, and only rows of
//! the best chunks are scored. Exact where every row is selected.
//!
//! The query's rows run up to one layer and see the anchors alone of the context: of each chunk its
//! first row, its last row, and those that a typical query of that layer attends to most. s_c = the
//! mean attention in that layer to the anchors of chunk c. The queries of that layer then attend to
//! all rows of the best chunks; their attention is the score of a row.
//!
//! After QCFuse (arXiv:2604.08585, 2606.05875), of which the abstracts were at hand: budgets, the
//! layer and the choice of anchors are ours. The queries of a chunk's own rows are not cached, so
//! anchors follow from cached keys and a mean query of the model.

use std::ops::Bound::{Excluded, Included};

use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::{IMPORTANCE, LAYOUT, ORDER_FOR, RATIO, REORDER, SCORE};
use crate::prefill::{Evidence, Layers, Prefill, Selection};
use crate::rows::top_rows;
use crate::selector::{Candidates, Need, Selector};
use crate::terms::Anchors;

/// Depth of the scored layer, in per cent of the model's layers.
const DEPTH: usize = 60;

static LAYER: MethodOption = MethodOption {
    key: "layer",
    value: "N",
    kind: Kind::Count(0..=usize::MAX),
    usual: Usual::Computed("at depth 0.6, or the next one without a sliding window"),
    help: "Layer whose attention counts, from 0",
};

static ANCHORS: MethodOption = MethodOption {
    key: "anchors",
    value: "N",
    kind: Kind::Count(0..=u32::MAX as usize),
    usual: Usual::Value("4"),
    help: "Anchors of a chunk besides its first and its last row",
};

static CHUNKS: MethodOption = MethodOption {
    key: "chunks",
    value: "SHARE",
    kind: Kind::Number(Excluded(0.0), Included(1.0)),
    usual: Usual::Value("0.5"),
    help: "Share of the chunks whose rows are scored, the best by their anchors; more where the budget has more rows",
};

/// The declaration.
pub static QCFUSE: Method = Method {
    name: "qcfuse-like",
    summary: "rows that the query attends to in one layer, of the chunks whose anchors it attends to most",
    source: "after QCFuse (arXiv:2604.08585)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows up to depth 0.6 that see 6 rows of each chunk, M rows that see T/2 keys in one layer, then n + M rows",
    ratio: Some(0.15),
    options: &[&RATIO, &REORDER, &IMPORTANCE, &ORDER_FOR, &SCORE, &LAYER, &ANCHORS, &CHUNKS, &LAYOUT],
    requires: None,
    default_of: &[],
    samples: &[
        "qcfuse-like",
        "qcfuse-like:score=mass:layer=1:anchors=1:chunks=0.3:layout=hl-tp",
        "qcfuse-like:layer=0:anchors=0:chunks=1",
        "qcfuse-like:reorder",
    ],
    prefill,
    selector: Some(selector),
};

/// The default layer is the one at depth 0.6: 24 of 40, 3 of 5, 0 of 1.
fn prefill(options: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    let at = DEPTH * model.layers / 100;
    let reaching = Layers::Some(at, at + 1).reaching(model).of(model.layers);
    let usual = if reaching.start < at { reaching.start } else { reaching.end - 1 };
    options.set_default(&LAYER, &usual.to_string());
    let layer: usize = options.usual(&LAYER);
    if layer >= model.layers {
        let most = model.layers.saturating_sub(1);
        let wanted = format!("must be from 0 to {most}: the model has {} layers", model.layers);
        return Err(InvalidOption::new(&LAYER, &layer, wanted));
    }
    let anchors = Anchors { rows: options.usual(&ANCHORS), chunks: options.usual(&CHUNKS) };
    let layers = Layers::Some(layer, layer + 1);
    let evidence = Evidence::of_query(layers, options.usual(&SCORE), options.usual(&LAYOUT));
    Ok(Prefill::Chunks(Selection::Evidence(Evidence { anchors: Some(anchors), ..evidence })))
}

fn selector(selection: Selection) -> Box<dyn Selector> {
    let Selection::Evidence(Evidence { anchors: Some(anchors), .. }) = selection else {
        unreachable!("qcfuse-like resolves to attention and anchors, not to {selection:?}");
    };
    Box::new(ByAnchors { anchors, scored: None })
}

/// A probe of the anchors, then of the rows of the best chunks.
struct ByAnchors {
    anchors: Anchors,
    /// First row and length of the chunks whose rows are scored, the best first.
    scored: Option<Vec<(u32, usize)>>,
}

impl Selector for ByAnchors {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Need {
        if evidence.is_empty() {
            return Need::Probe;
        }
        match &self.scored {
            None => {
                let best = self.best(candidates, evidence);
                self.scored = Some(best.clone());
                Need::Within(best)
            }
            Some(best) => Need::Chosen { rows: self.chosen(candidates, best, evidence), scores: evidence.to_vec() },
        }
    }
}

impl ByAnchors {
    /// The chunks whose rows are scored, the best first; ties go to the lower row.
    fn best(&self, candidates: &Candidates, attention: &[f32]) -> Vec<(u32, usize)> {
        let score = |&(first, _): &(u32, usize)| attention[(first - candidates.first_row) as usize];
        let mut chunks = candidates.chunks.clone();
        chunks.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.0.cmp(&b.0)));
        let lengths: Vec<usize> = chunks.iter().map(|&(_, length)| length).collect();
        chunks.truncate(self.anchors.scored_of(&lengths, candidates.budget));
        chunks
    }

    /// The best rows of the scored chunks, ascending: as many as the budget, or all. Where these
    /// are more chunks than the share, all rows of those before the last are taken.
    fn chosen(&self, candidates: &Candidates, scored: &[(u32, usize)], scores: &[f32]) -> Vec<u32> {
        let is_share = scored.len() <= self.anchors.share_of(candidates.chunks.len());
        let (whole, part) = scored.split_at(if is_share { 0 } else { scored.len() - 1 });
        let rows = |chunks: &[(u32, usize)]| -> Vec<u32> {
            chunks.iter().flat_map(|&(first, length)| first..first + length as u32).collect()
        };
        let (mut chosen, part) = (rows(whole), rows(part));
        let left = candidates.budget.saturating_sub(chosen.len());
        chosen.extend(top_rows(&part, |row| scores[(row - candidates.first_row) as usize], left));
        chosen.sort_unstable();
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::TextHints;

    /// Chunks of rows 2..6, 6..8, 8..11 and 11..16; the first is no candidate.
    fn candidates(budget: usize) -> Candidates {
        Candidates {
            first_row: 2,
            context: 14,
            rows: (6..16).collect(),
            chunks: vec![(11, 5), (6, 2), (8, 3)], // in the order of the layout, which is not the request's
            budget,
            measured: 0,
            query: 3,
            seed: 0,
            auxiliary: Vec::new(),
            text: TextHints::default(),
        }
    }

    /// The chunks whose rows are scored and the rows that are taken, where the chunk of row 8 is
    /// the best, then that of row 6, and rows have scores that rise with their number.
    fn run(share: f32, budget: usize) -> (Vec<u32>, Vec<u32>) {
        let mut selector = ByAnchors { anchors: Anchors { rows: 4, chunks: share }, scored: None };
        assert_eq!(selector.next(&candidates(budget), &[]), Need::Probe);
        let of_chunks = [vec![9.0; 4], vec![2.0; 2], vec![3.0; 3], vec![1.0; 5]].concat();
        let Need::Within(best) = selector.next(&candidates(budget), &of_chunks) else { panic!("no chunks") };
        let rising: Vec<f32> = (0..14).map(|row| row as f32).collect();
        let Need::Chosen { rows, scores } = selector.next(&candidates(budget), &rising) else { panic!("no answer") };
        assert_eq!(scores, rising);
        (best.into_iter().map(|(first, _)| first).collect(), rows)
    }

    #[test]
    fn rows_of_the_best_chunks_are_taken_by_their_scores() {
        assert_eq!(run(0.5, 2), (vec![8, 6], vec![9, 10]), "two of three chunks; the first is none of them");
        assert_eq!(run(0.5, 4), (vec![8, 6], vec![7, 8, 9, 10]));
        assert_eq!(run(0.1, 2), (vec![8], vec![9, 10]), "at least one chunk");
        assert_eq!(run(1.0, 3), (vec![8, 6, 11], vec![13, 14, 15]), "all of them");
    }

    #[test]
    fn a_budget_beyond_them_goes_to_the_next_chunks_in_their_order() {
        assert_eq!(run(0.1, 3), (vec![8], vec![8, 9, 10]), "as many as there are");
        assert_eq!(run(0.1, 4), (vec![8, 6], vec![7, 8, 9, 10]), "the best row of the next one");
        assert_eq!(run(0.5, 7), (vec![8, 6, 11], vec![6, 7, 8, 9, 10, 14, 15]));
        let all: Vec<u32> = (6..16).collect();
        assert_eq!(run(0.5, 10), (vec![8, 6, 11], all.clone()));
        assert_eq!(run(0.5, 14), (vec![8, 6, 11], all), "where the budget has room for the first chunk too");
    }

    #[test]
    fn equal_chunks_come_in_the_order_of_their_rows() {
        let selector = ByAnchors { anchors: Anchors { rows: 4, chunks: 0.5 }, scored: None };
        assert_eq!(selector.best(&candidates(2), &[0.5; 14]), [(6, 2), (8, 3)]);
        let none = Candidates { chunks: Vec::new(), rows: Vec::new(), ..candidates(2) };
        assert!(selector.best(&none, &[0.5; 14]).is_empty());
    }

    #[test]
    fn shares_of_chunks_are_rounded_up() {
        let of = |chunks: f32, count: usize| Anchors { rows: 4, chunks }.share_of(count);
        assert_eq!([of(0.5, 4), of(0.5, 5), of(0.3, 10), of(0.01, 3), of(1.0, 7), of(0.5, 0)], [2, 3, 3, 1, 7, 0]);
        let lengths = |rows: usize| [1, 2, 3, 9].map(|length| Anchors { rows, chunks: 1.0 }.of_chunk(length));
        assert_eq!((lengths(0), lengths(4), lengths(usize::MAX)), ([1, 2, 2, 2], [1, 2, 3, 6], [1, 2, 3, 9]));
    }
}
