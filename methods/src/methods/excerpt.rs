//! Excerpt (ours): the sentences that the query attends to most, computed as a prompt of their own;
//! every other row of the context is hidden. Exact where every row is selected.
//!
//! The score of a row is its attention from the end of the query, in the later layers, over chunks
//! as they are cached. A sentence counts the mean of its rows. Whole sentences are taken, the best
//! first, each that still fits into the budget; the best one that does not gives the run of its
//! rows that fills the rest. They see each other at their own places, and the query and the answer
//! see them alone: nothing stale is left.
//!
//! Where the context's text is known, words that the query has too are half of the score: the
//! weights of such words and the attention are normalised each. Half of the budget then goes to the
//! openings of the `named` chunks that such words name, where these tell what their chunks are
//! about: later sentences leave that out, and a question that names one document needs another one,
//! which that one names. Attention of chunks that do not know each other finds neither.
//!
//! `hops=2` is for questions whose answer stands in a document that the question does not name: the
//! sentences that fill half of the budget are computed once with all of the context in sight, and
//! their own attention, weighted by their scores, is half of the score (as in `relay`; each half is
//! normalised). `unit=chunk` takes whole chunks, which count their best row.
//!
//! Draft models choose excerpts of a prompt in the same way (SpecPrefill, Liu et al. 2025,
//! arXiv:2502.02789); here cached chunks take the draft's part.

use std::ops::Range;

use super::infoflow::layers_between;
use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::{LAYERS, LAYOUT, RATIO, RECENCY, SCORE};
use crate::prefill::{Evidence, Prefill, Selection};
use crate::rows::{normalised, shares};
use crate::selector::{Candidates, Need, Selector};
use crate::terms::{Excerpt, Unit};

static LONGEST: MethodOption = MethodOption {
    key: "longest",
    value: "N",
    kind: Kind::Count(1..=u32::MAX as usize),
    usual: Usual::Value("48"),
    help: "Longest sentence, in rows: longer ones are cut, and a context of token ids is cut into runs of N",
};

static HOPS: MethodOption = MethodOption {
    key: "hops",
    value: "N",
    kind: Kind::Count(1..=2),
    usual: Usual::Value("1"),
    help: "2: rows that the best sentences attend to count as much as those that the query does",
};

static UNIT: MethodOption = MethodOption {
    key: "unit",
    value: "sentence|chunk",
    kind: Kind::Word(Unit::NAMES),
    usual: Usual::Value("sentence"),
    help: "Part that is taken whole",
};

static NAMED: MethodOption = MethodOption {
    key: "named",
    value: "N",
    kind: Kind::Count(0..=MOST_NAMED),
    usual: Usual::Value("2"),
    help: "Chunks named by the query's words, whose openings have half of the budget; 0: attention alone; with unit=chunk 0 by default",
};

/// Maximum number of chunks whose openings are taken.
const MOST_NAMED: usize = 8;

/// Divisor of the budget for the openings of named chunks.
const OPENINGS_DIVISOR: usize = 2;

/// Divisor of the budget for the first of two hops.
const HOP_DIVISOR: usize = 2;

/// The declaration.
pub static EXCERPT: Method = Method {
    name: "excerpt",
    summary: "sentences that the query attends to and shares words with, as a prompt of their own; the rest is hidden",
    source: "ours",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows up to depth 0.95, with hops=2 n/2 rows, then n + M rows that see n + M rows; the rest is not seen",
    ratio: Some(0.15),
    options: &[&RATIO, &SCORE, &RECENCY, &LAYERS, &LONGEST, &NAMED, &UNIT, &HOPS, &LAYOUT],
    requires: None,
    default_of: &[],
    samples: &[
        "excerpt",
        "excerpt:longest=3:named=0",
        "excerpt:score=mass:recency=0.5:layers=0..2:layout=hl-tp",
        "excerpt:unit=chunk:hops=2",
    ],
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
    let unit = options.usual(&UNIT);
    if unit == Unit::Chunk {
        options.set_default(&NAMED, "0");
    }
    let excerpt = Some(Excerpt { longest: options.usual(&LONGEST), named: options.usual(&NAMED), unit });
    let (recency, hops) = (options.get(&RECENCY), options.usual::<usize>(&HOPS));
    let pass_divisor = (hops > 1).then_some(HOP_DIVISOR);
    let evidence =
        Evidence::of_query(layers_between(options, [40, 95], model)?, options.usual(&SCORE), options.usual(&LAYOUT));
    Ok(Prefill::Chunks(Selection::Evidence(Evidence { excerpt, recency, pass_divisor, ..evidence })))
}

fn selector(selection: Selection) -> Box<dyn Selector> {
    let Selection::Evidence(Evidence { excerpt: Some(parts), pass_divisor, .. }) = selection else {
        unreachable!("excerpt resolves to attention and what is taken whole, not to {selection:?}");
    };
    Box::new(Selecting { parts, hops: if pass_divisor.is_some() { 2 } else { 1 }, first: None })
}

/// A probe, and perhaps a pass over the best sentences.
struct Selecting {
    parts: Excerpt,
    hops: usize,
    /// The normalised scores of the first of two hops.
    first: Option<Vec<f32>>,
}

impl Selector for Selecting {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Need {
        if evidence.is_empty() {
            return Need::Probe;
        }
        let scores = match self.first.take() {
            Some(first) => sums(&first, &normalised(evidence)),
            None if self.hops > 1 => {
                let first = self.with_words(candidates, normalised(evidence));
                let sentences = Excerpt { unit: Unit::Sentence, named: 0, ..self.parts };
                let rows = excerpt(candidates, &first, (sentences, candidates.measured));
                if !rows.is_empty() {
                    let weights = shares(&rows, |row| first[(row - candidates.first_row) as usize]);
                    self.first = Some(first);
                    return Need::Pass { rows, weights };
                }
                first
            }
            None => self.with_words(candidates, evidence.to_vec()),
        };
        Need::Chosen { rows: excerpt(candidates, &scores, (self.parts, candidates.budget)), scores }
    }
}

impl Selecting {
    /// The attention, or half of it and half the weights of shared words, both normalised.
    fn with_words(&self, candidates: &Candidates, attention: Vec<f32>) -> Vec<f32> {
        let shared = &candidates.text.shared_words;
        if self.parts.named == 0 || shared.is_empty() {
            return attention;
        }
        let mut words = vec![0.0; candidates.context];
        for &(row, weight) in shared {
            words[(row - candidates.first_row) as usize] = weight;
        }
        sums(&normalised(&attention), &normalised(&words))
    }
}

fn sums(one: &[f32], other: &[f32]) -> Vec<f32> {
    one.iter().zip(other).map(|(one, other)| one + other).collect()
}

/// The openings of the named chunks, the rows of the best sentences or chunks that fit into the
/// rest of the budget, and of the best other one those that follow one another and have the highest
/// sum: as many rows as the budget, or all. Ascending; ties go to the earlier part and run.
fn excerpt(candidates: &Candidates, scores: &[f32], (parts, budget): (Excerpt, usize)) -> Vec<u32> {
    let Excerpt { longest, named, unit } = parts;
    let score = |row: u32| scores[(row - candidates.first_row) as usize];
    let openings = openings(candidates, named as usize, budget / OPENINGS_DIVISOR);
    let others = |rows: Range<u32>| {
        let opening = openings.iter().find(|opening| opening.contains(&rows.start));
        opening.map_or(rows.start, |opening| opening.end.min(rows.end))..rows.end
    };
    let numbers = |rows: &Range<u32>| rows.clone().map(|row| f64::from(score(row)));
    let mut parts: Vec<(f64, Range<u32>)> = match unit {
        Unit::Sentence => {
            let mean = |rows: Range<u32>| (numbers(&rows).sum::<f64>() / rows.len() as f64, rows);
            sentences(candidates, longest).map(others).filter(|rows| !rows.is_empty()).map(mean).collect()
        }
        Unit::Chunk => chunks(candidates).map(others).map(|rows| (numbers(&rows).fold(0.0, f64::max), rows)).collect(),
    };
    parts.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.start.cmp(&other.start)));
    let mut chosen: Vec<u32> = openings.iter().cloned().flatten().collect();
    let (mut left, mut best_other) = (budget - chosen.len(), None);
    for (_, rows) in parts {
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

/// The first rows of at most `most` named chunks: as many of each, up to `budget` of all. What a
/// short chunk leaves goes to the others.
fn openings(candidates: &Candidates, most: usize, budget: usize) -> Vec<Range<u32>> {
    let chunk = |first: &u32| candidates.chunks.iter().find(|(start, _)| start == first).copied();
    let mut named: Vec<(u32, usize)> = candidates.text.named.iter().filter_map(chunk).take(most).collect();
    named.sort_by_key(|&(first, length)| (length, first));
    let (mut left, count) = (budget, named.len());
    let taken = |(place, (first, length)): (usize, (u32, usize))| {
        let rows = length.min(left / (count - place));
        left -= rows;
        first..first + rows as u32
    };
    named.into_iter().enumerate().map(taken).collect()
}

/// The rows of each candidate chunk.
fn chunks(candidates: &Candidates) -> impl Iterator<Item = Range<u32>> {
    candidates.chunks.iter().map(|&(first, length)| first..first + length as u32)
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
        let from = candidates.text.sentence_ends.partition_point(|&row| row < first);
        let mut ends =
            candidates.text.sentence_ends[from..].iter().map(|&row| row + 1).take_while(move |&row| row < end);
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
    use crate::selector::TextHints;

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
            text: TextHints { sentence_ends: sentence_ends.to_vec(), ..TextHints::default() },
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
        let sentences = Excerpt { longest: 48, named: 2, unit: Unit::Sentence };
        let of = |budget: usize| excerpt(&candidates(&[4, 9], 0), &scores, (sentences, budget));
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

    #[test]
    fn the_best_chunks_that_fit_are_taken_whole() {
        // Chunks 2..7 and 7..14: the second has the best row, and does not fit into six.
        let scores = [1.0, 1.0, 2.0, 3.0, 3.0, 0.0, 2.0, 4.0, 0.0, 0.0, 3.0, 1.0];
        let whole = Excerpt { longest: 48, named: 0, unit: Unit::Chunk };
        let of = |budget: usize| excerpt(&candidates(&[4, 9], 0), &scores, (whole, budget));
        assert_eq!(of(6), [2, 3, 4, 5, 6, 9], "and the best row of the other one");
        assert_eq!(of(7), (7..14).collect::<Vec<_>>());
        assert_eq!(of(9), [5, 6, 7, 8, 9, 10, 11, 12, 13]);
    }

    #[test]
    fn named_chunks_give_their_openings_and_shared_words_count() {
        let scores = [1.0, 1.0, 1.0, 3.0, 3.0, 0.0, 2.0, 4.0, 0.0, 0.0, 3.0, 1.0];
        let named = |named: Vec<u32>, shared_words: Vec<(u32, f32)>| {
            let text = TextHints { sentence_ends: vec![4, 9], shared_words, named };
            Candidates { text, ..candidates(&[], 8) }
        };
        let of = |candidates: &Candidates, named: u32| {
            let mut one =
                Selecting { parts: Excerpt { longest: 48, named, unit: Unit::Sentence }, hops: 1, first: None };
            let Need::Chosen { rows, .. } = one.next(candidates, &scores) else { panic!("it has chosen") };
            rows
        };
        let one = named(vec![7], Vec::new());
        assert_eq!(
            of(&one, 2),
            [5, 6, 7, 8, 9, 10, 12, 13],
            "four rows of the named chunk, a sentence, a run of another"
        );
        assert_eq!(of(&one, 0), [2, 3, 4, 5, 6, 7, 8, 9], "attention alone");
        assert_eq!(openings(&named(vec![7, 2], Vec::new()), 8, 5), [2..4, 7..10]);
        let first = openings(&named(vec![7, 2, 99], Vec::new()), 1, 5);
        assert!(first.into_iter().flatten().eq(7..12), "only the best one");
        assert_eq!(
            openings(&named(vec![7, 2], Vec::new()), 2, 11),
            [2..7, 7..13],
            "a short one leaves rows to the other"
        );
        // A shared word in the last sentence makes it the best.
        let word = named(Vec::new(), vec![(11, 0.5)]);
        assert_eq!(of(&word, 2), [5, 6, 8, 9, 10, 11, 12, 13]);
        assert_eq!(of(&word, 0), of(&one, 0));
    }

    #[test]
    fn a_second_hop_follows_the_best_sentences() {
        let scores = [1.0, 1.0, 1.0, 3.0, 3.0, 0.0, 2.0, 4.0, 0.0, 0.0, 3.0, 1.0];
        let all = Candidates { measured: 2, ..candidates(&[4, 9], 4) };
        let parts = Excerpt { longest: 48, named: 2, unit: Unit::Sentence };
        let mut two = Selecting { parts, hops: 2, first: None };
        assert_eq!(two.next(&all, &[]), Need::Probe);
        assert_eq!(two.next(&all, &scores), Need::Pass { rows: vec![5, 6], weights: vec![0.5; 2] });
        // They attend to rows 10 to 13 alone.
        let mut second = [0.0; 12];
        second[8..12].fill(1.0);
        let Need::Chosen { rows, .. } = two.next(&all, &second) else { panic!("it has chosen") };
        assert_eq!(rows, [10, 11, 12, 13]);
        let mut alone = Selecting { parts, hops: 2, first: None };
        let nothing = Candidates { rows: Vec::new(), chunks: Vec::new(), ..all.clone() };
        assert!(
            matches!(alone.next(&nothing, &scores), Need::Chosen { rows, .. } if rows.is_empty()),
            "no row, no pass"
        );
        let mut one = Selecting { parts, hops: 1, first: None };
        assert!(matches!(one.next(&all, &scores), Need::Chosen { rows, .. } if rows == [5, 6, 8, 9]));
    }
}
