//! Excerpt (ours): the sentences that the query attends to most, computed as a prompt of their own;
//! every other row of the context is hidden. Exact where every row is selected.
//!
//! The score of a row is its attention from the end of the query, in the later layers, over chunks
//! as they are cached. A sentence counts the mean of its rows. Whole sentences are taken, the best
//! first, each that still fits into the budget; the best one that does not gives the run of its
//! rows that fills the rest. They see each other at their own places, and the query and the answer
//! see them alone: nothing stale is left. Draft models choose excerpts of a prompt in the same way
//! (SpecPrefill, Liu et al. 2025, arXiv:2502.02789); here cached chunks take the draft's part.

use std::ops::Range;

use super::infoflow::layers_between;
use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::{LAYERS, LAYOUT, RATIO, RECENCY, SCORE};
use crate::prefill::{Evidence, Prefill, Selection};
use crate::selector::{Candidates, Need, Selector};

static LONGEST: MethodOption = MethodOption {
    key: "longest",
    value: "N",
    kind: Kind::Count(1..=u32::MAX as usize),
    usual: Usual::Value("48"),
    help: "Longest sentence, in rows: longer ones are cut, and a context of token ids is cut into runs of N",
};

/// The declaration.
pub static EXCERPT: Method = Method {
    name: "excerpt",
    summary: "sentences that the end of the query attends to, computed as a prompt of their own; the rest is hidden",
    source: "ours",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows up to depth 0.95, then n + M rows that see n + M rows; the rest is not seen",
    ratio: Some(0.15),
    options: &[&RATIO, &SCORE, &RECENCY, &LAYERS, &LONGEST, &LAYOUT],
    requires: None,
    default_of: &[],
    samples: &["excerpt", "excerpt:longest=3", "excerpt:score=mass:recency=0.5:layers=0..2:layout=hl-tp"],
    prefill,
    selector: Some(selector),
};

impl Method {
    /// Whether it selects whole sentences of the context, so that its plans need their ends.
    pub fn reads_sentences(&self) -> bool {
        self.takes(&LONGEST)
    }
}

/// By default the scoring layers are those of `attn-drift`.
fn prefill(options: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    options.set_default(&RECENCY, "2");
    let (excerpt, recency) = (Some(options.usual(&LONGEST)), options.get(&RECENCY));
    let evidence =
        Evidence::of_query(layers_between(options, [40, 95], model)?, options.usual(&SCORE), options.usual(&LAYOUT));
    Ok(Prefill::Chunks(Selection::Evidence(Evidence { excerpt, recency, ..evidence })))
}

fn selector(selection: Selection) -> Box<dyn Selector> {
    let Selection::Evidence(Evidence { excerpt: Some(longest), .. }) = selection else {
        unreachable!("excerpt resolves to attention and the length of a sentence, not to {selection:?}");
    };
    Box::new(move |candidates: &Candidates, evidence: &[f32]| match evidence {
        [] => Need::Probe,
        scores => Need::Chosen { rows: excerpt(candidates, scores, longest), scores: scores.to_vec() },
    })
}

/// The rows of the best sentences that fit into the budget, and of the best other one those that
/// follow one another and have the highest sum: as many rows as the budget, or all. Ascending; ties
/// go to the earlier sentence and run.
fn excerpt(candidates: &Candidates, scores: &[f32], longest: u32) -> Vec<u32> {
    let score = |row: u32| scores[(row - candidates.first_row) as usize];
    let mut sentences: Vec<(f64, Range<u32>)> = sentences(candidates, longest)
        .map(|rows| (rows.clone().map(|row| f64::from(score(row))).sum::<f64>() / rows.len() as f64, rows))
        .collect();
    sentences.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.start.cmp(&other.start)));
    let (mut chosen, mut left, mut best_other) = (Vec::with_capacity(candidates.budget), candidates.budget, None);
    for (_, rows) in sentences {
        if rows.len() <= left {
            left -= rows.len();
            chosen.extend(rows);
        } else {
            best_other.get_or_insert(rows);
        }
    }
    chosen.extend(best_other.map_or(0..0, |rows| best_run(rows, left, score)));
    chosen.sort_unstable();
    chosen
}

/// The `count` rows that follow one another and have the highest sum, of more rows.
fn best_run(rows: Range<u32>, count: usize, score: impl Fn(u32) -> f32) -> Range<u32> {
    let mut before = vec![0.0]; // sums of the rows before each
    before.extend(rows.clone().scan(0.0, |sum, row| {
        *sum += f64::from(score(row));
        Some(*sum)
    }));
    let sum = |from: usize| before[from + count] - before[from];
    let starts = 0..=rows.len() - count;
    let best = starts.reduce(|best, other| if sum(other) > sum(best) { other } else { best }).unwrap_or(0);
    let first = rows.start + best as u32;
    first..first + count as u32
}

/// The sentences of all candidates: chunks cut behind their sentences' ends, and longer ones into
/// as few almost equal runs of at most `longest` rows as can be.
fn sentences(candidates: &Candidates, longest: u32) -> impl Iterator<Item = Range<u32>> {
    let in_chunk = move |&(first, length): &(u32, usize)| {
        let end = first + length as u32;
        let from = candidates.sentence_ends.partition_point(|&row| row < first);
        let mut ends = candidates.sentence_ends[from..].iter().map(|&row| row + 1).take_while(move |&row| row < end);
        let mut at = first;
        std::iter::from_fn(move || {
            let next = ends.by_ref().find(|&next| next > at).unwrap_or(end);
            (at < end).then(|| std::mem::replace(&mut at, next)..next)
        })
    };
    let cut = move |rows: Range<u32>| {
        let (length, count) = (rows.len() as u64, (rows.len() as u64).div_ceil(u64::from(longest.max(1))));
        let place = move |run: u64| rows.start + (run * length / count) as u32;
        (0..count).map(move |run| place(run)..place(run + 1))
    };
    candidates.chunks.iter().flat_map(in_chunk).flat_map(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(sentence_ends: &[u32], budget: usize) -> Candidates {
        Candidates {
            first_row: 2,
            context: 12,
            rows: (2..14).collect(),
            chunks: vec![(7, 7), (2, 5)], // in the order of the layout, which is not the request's
            budget,
            measured: 0,
            query: 3,
            seed: 0,
            auxiliary: Vec::new(),
            sentence_ends: sentence_ends.to_vec(),
        }
    }

    fn cut(ends: &[u32], longest: u32) -> Vec<Range<u32>> {
        sentences(&candidates(ends, 0), longest).collect()
    }

    #[test]
    fn chunks_are_cut_behind_the_ends_of_sentences() {
        assert_eq!(cut(&[4, 9, 13], 48), [7..10, 10..14, 2..5, 5..7]);
        assert_eq!(cut(&[6, 7, 8], 48), [7..8, 8..9, 9..14, 2..7], "an end of a chunk ends a sentence anyway");
        assert_eq!(cut(&[], 48), [7..14, 2..7], "no ends are known");
        assert_eq!(cut(&[4], 3), [7..9, 9..11, 11..14, 2..5, 5..7], "long ones are cut, not into three and one");
        assert_eq!(cut(&[], u32::MAX), [7..14, 2..7]);
    }

    #[test]
    fn the_best_sentences_that_fit_are_taken_whole() {
        // Sentences 2..5, 5..7, 7..10, 10..14 with means 1, 3, 2 and 1.
        let scores = [1.0, 1.0, 1.0, 3.0, 3.0, 0.0, 2.0, 4.0, 0.0, 0.0, 3.0, 1.0];
        let of = |budget: usize| excerpt(&candidates(&[4, 9], budget), &scores, 48);
        assert_eq!(of(2), [5, 6]);
        assert_eq!(of(4), [5, 6, 8, 9], "of the next one the run with the highest sum");
        assert_eq!(of(5), [5, 6, 7, 8, 9]);
        assert_eq!(of(8), [2, 3, 4, 5, 6, 7, 8, 9], "ties go to the earlier sentence");
        assert_eq!(of(9), [2, 3, 4, 5, 6, 7, 8, 9, 12], "the best row of the last one");
        assert_eq!(of(10), [2, 3, 4, 5, 6, 7, 8, 9, 12, 13], "its best run of two");
        assert_eq!(of(1), [5], "a row of the best one, where none fits");
        assert_eq!(of(12), (2..14).collect::<Vec<_>>());
        assert_eq!(of(99), (2..14).collect::<Vec<_>>());
        assert!(of(0).is_empty());
    }
}
