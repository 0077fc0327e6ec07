//! SpecPrefill-like (after Liu et al. 2025, arXiv:2502.02789): a small model reads the whole prompt
//! and writes some tokens; the spans of the context that it attends to most are computed at their
//! own places, and nothing else of the context is. Exact where every row is selected.
//!
//! The reading of a row is its attention from each row that writes a token: the largest over the
//! small model's heads and layers, then the mean over those rows. Readings are averaged over
//! neighbouring rows, and spans of equal length are taken whole, the best means first; the span
//! that fills the budget gives its first rows.
//!
//! The published program needs one tokenizer for both models, may drop rows of query and prefix,
//! takes softmax over the prompt alone, and averages neighbours before it takes the largest head.
//! Here another tokenizer is aligned by letters, query and prefix stay, softmax is over all that a
//! row sees, and neighbours are averaged last, over rows of the main model.

use crate::method::{Claim, InvalidOption, Method, Requirement};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::RATIO;
use crate::prefill::{AuxiliaryReading, Prefill, Selection};
use crate::selector::{Candidates, Need, Selector};

static TOKENS: MethodOption = MethodOption {
    key: "tokens",
    value: "N",
    kind: Kind::Count(1..=64),
    usual: Usual::Value("8"),
    help: "Tokens that the auxiliary model writes after the prompt; fewer if it ends its answer",
};

static POOL: MethodOption = MethodOption {
    key: "pool",
    value: "N",
    kind: Kind::Count(1..=u32::MAX as usize),
    usual: Usual::Value("13"),
    help: "Neighbouring rows over which readings are averaged, an odd number",
};

static SPAN: MethodOption = MethodOption {
    key: "span",
    value: "N",
    kind: Kind::Count(1..=u32::MAX as usize),
    usual: Usual::Value("32"),
    help: "Rows of a span, which is kept or left out as a whole",
};

/// The declaration.
pub static SPEC_PREFILL: Method = Method {
    name: "spec-prefill-like",
    summary: "spans that a small model attends to while it begins an answer, computed alone; no chunk is prefilled",
    source: "after SpecPrefill (Liu et al. 2025)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "the small model over N rows and 8 tokens on rank 0's host, then prefix and n + M rows that see prefix and n + M rows; no chunks",
    ratio: Some(0.15),
    options: &[&RATIO, &TOKENS, &POOL, &SPAN],
    requires: Some(Requirement::AuxiliaryModel),
    default_of: &[],
    samples: &["spec-prefill-like", "spec-prefill-like:tokens=3:pool=3:span=4"],
    prefill,
    selector: Some(selector),
};

fn prefill(options: &mut Options, _: ModelFacts) -> Result<Prefill, InvalidOption> {
    let (tokens, pool, span) = (options.usual(&TOKENS), options.usual::<u32>(&POOL), options.usual(&SPAN));
    if pool % 2 == 0 {
        return Err(InvalidOption::new(&POOL, &pool, "must be odd: as many rows before a row as after it"));
    }
    Ok(Prefill::Selected(Selection::Auxiliary(AuxiliaryReading::Prompt { tokens, pool, span })))
}

fn selector(selection: Selection) -> Box<dyn Selector> {
    let Selection::Auxiliary(AuxiliaryReading::Prompt { pool, span, .. }) = selection else {
        unreachable!("spec-prefill-like resolves to the reading of a prompt, not to {selection:?}");
    };
    Box::new(move |candidates: &Candidates, _: &[f32]| {
        let scores = candidates.only_reading();
        Need::Chosen { rows: best_spans(candidates, scores, (pool, span)), scores: scores.to_vec() }
    })
}

/// As many rows as the budget, or all: whole spans of candidates, those with the highest means
/// first, and the first rows of the next one. Ascending; ties go to the earlier span.
fn best_spans(candidates: &Candidates, scores: &[f32], (pool, span): (u32, u32)) -> Vec<u32> {
    let rows = &candidates.rows;
    let own: Vec<f32> = rows.iter().map(|&row| scores[(row - candidates.first_row) as usize]).collect();
    let (smooth, span) = (pooled(&own, pool as usize), span as usize);
    let mean = |smooth: &[f64]| smooth.iter().sum::<f64>() / smooth.len() as f64;
    let mut spans: Vec<(f64, &[u32])> = smooth.chunks(span).map(mean).zip(rows.chunks(span)).collect();
    spans.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one[0].cmp(&other[0])));
    let best = spans.into_iter().flat_map(|(_, rows)| rows).take(candidates.budget);
    let mut chosen: Vec<u32> = best.copied().collect();
    chosen.sort_unstable();
    chosen
}

/// The mean of each number and its neighbours, `pool` in all; fewer at the ends.
fn pooled(numbers: &[f32], pool: usize) -> Vec<f64> {
    let mut before = vec![0.0]; // sums of the numbers before each
    before.extend(numbers.iter().scan(0.0, |sum, &number| {
        *sum += f64::from(number);
        Some(*sum)
    }));
    let mean = |place: usize| {
        let (from, to) = (place.saturating_sub(pool / 2), numbers.len().min(place + pool / 2 + 1));
        (before[to] - before[from]) / (to - from) as f64
    };
    (0..numbers.len()).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::TextHints;

    fn candidates(budget: usize) -> Candidates {
        Candidates {
            first_row: 2,
            context: 11,
            rows: (2..13).collect(),
            chunks: vec![(7, 6), (2, 5)],
            budget,
            measured: 0,
            query: 3,
            seed: 0,
            auxiliary: Vec::new(),
            text: TextHints::default(),
        }
    }

    #[test]
    fn numbers_are_averaged_with_their_neighbours() {
        assert_eq!(pooled(&[1.0, 2.0, 6.0, 0.0], 1), [1.0, 2.0, 6.0, 0.0]);
        assert_eq!(pooled(&[1.0, 2.0, 6.0, 0.0], 3), [1.5, 3.0, 8.0 / 3.0, 3.0], "two at an end");
        assert_eq!(pooled(&[1.0, 5.0], 13), [3.0, 3.0], "all of them");
        assert!(pooled(&[], 3).is_empty());
    }

    #[test]
    fn the_best_spans_are_taken_whole_and_the_next_gives_its_first_rows() {
        // Spans 2..6, 6..10 and 10..13 with means 1, 2 and 3.
        let scores = [1.0, 1.0, 2.0, 0.0, 2.0, 2.0, 0.0, 4.0, 3.0, 6.0, 0.0];
        let of = |budget: usize| best_spans(&candidates(budget), &scores, (1, 4));
        assert_eq!(of(3), [10, 11, 12], "they begin with the context, not with a chunk");
        assert_eq!(of(5), [6, 7, 10, 11, 12]);
        assert_eq!(of(9), [2, 3, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(of(2), [10, 11], "the first rows of the best one, where none fits");
        assert_eq!(of(99), (2..13).collect::<Vec<_>>());
        assert!(of(0).is_empty());
        assert_eq!(best_spans(&candidates(4), &[1.0; 11], (3, 4)), [2, 3, 4, 5], "ties go to the earlier span");
        // A peak beside a span's end counts for its neighbour too.
        let mut peak = [0.0; 11];
        peak[3] = 9.0;
        assert_eq!(best_spans(&candidates(8), &peak, (3, 4)), (2..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_pool_has_a_middle() {
        let mut options = Options::default();
        options.set(&POOL, "4").expect("a number");
        let wrong = prefill(&mut options, ModelFacts::new(2, 1)).expect_err("an even number");
        assert_eq!((&*wrong.found, &wrong.wanted[..11]), ("pool=4", "must be odd"));
    }
}
