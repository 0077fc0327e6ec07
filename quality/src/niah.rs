//! The suite `niah`: one needle at a depth of an essay, over a grid of lengths and depths. The
//! needle and the questions are those of RULER's `niah_single_2`, a number after two words, so that
//! no sample can be answered from another or from memory. The grid is that of Kamradt's needle in a
//! haystack (2023), which has one sentence for all.

use crate::cut::{TEXT_CHUNK_TOKENS, chunks};
use crate::design::{Asked, chosen, numbers};
use crate::error::Result;
use crate::fitted::{BySize, Sizes};
use crate::material::{Essay, Material, Words};
use crate::random::Random;
use crate::ruler::{Draft, Form, Haystack, Needles, Place};
use crate::score::Metric;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// The one task.
const TASK: &str = "niah";

/// Default lengths and depths.
const LENGTHS: [usize; 2] = [2048, 4096];
const DEPTHS: [usize; 5] = [0, 25, 50, 75, 100];

/// Maximum tokens of the answer: the number comes at its beginning.
const ANSWER_TOKENS: usize = 32;

/// The most sentences of a context.
const MOST: usize = 1 << 24;

/// Hidden needle.
const NEEDLE: Needles =
    Needles { haystack: Haystack::Essay, key: Form::Word, value: Form::Number, keys: 1, values: 1, queries: 1 };

/// Lengths and depths, with the material of texts.
struct Niah {
    lengths: Vec<usize>,
    depths: Vec<usize>,
    chunk_tokens: usize,
    seed: u64,
    words: Words,
    essay: Essay,
    sizes: Sizes,
}

/// The suite as it was asked for.
///
/// # Errors
/// Returns an error if the task is unknown, or if its words or essays are missing.
pub fn open(asked: &Asked) -> Result<Box<dyn Suite>> {
    chosen(TASK, &asked.tasks, &[TASK])?;
    let material = Material::of(asked);
    Ok(Box::new(Niah {
        lengths: numbers(&asked.lengths, &LENGTHS),
        depths: numbers(&asked.depths, &DEPTHS),
        chunk_tokens: asked.chunk_tokens.first().copied().unwrap_or(TEXT_CHUNK_TOKENS),
        seed: asked.seed,
        words: material.words()?,
        essay: material.essay()?,
        sizes: Sizes::default(),
    }))
}

/// A length and a depth, as contexts of any size are made of it.
struct AtDepth<'a> {
    niah: &'a Niah,
    length: usize,
    depth: usize,
    measure: &'a Measure<'a>,
}

impl Niah {
    /// Number of sentences before the needle: the one at whose end the share of the tokens is
    /// nearest.
    fn behind(&self, size: usize, depth: usize, measure: &Measure<'_>) -> Result<usize> {
        let sentences = (0..size).map(|index| &self.essay.sentences[index % self.essay.sentences.len()]);
        let mut ends = vec![0];
        for sentence in sentences {
            ends.push(ends.last().copied().unwrap_or(0) + measure.tokens(sentence)?);
        }
        let wanted = ends.last().copied().unwrap_or(0) * depth;
        let nearest = (0..ends.len()).min_by_key(|&index| (100 * ends[index]).abs_diff(wanted));
        Ok(nearest.unwrap_or(0))
    }
}

impl BySize for AtDepth<'_> {
    fn bounds(&self, _number: usize) -> (usize, usize) {
        (1, MOST)
    }

    /// The needle of a number is the same at every depth.
    fn made(&self, number: usize, size: usize) -> Result<Sample> {
        let Self { niah, length, depth, measure } = *self;
        let random = &mut Random::of(&format!("niah {} {length} {number}", niah.seed));
        let place = Place::Behind(niah.behind(size, depth, measure)?);
        let Draft { lead, runs, query, begun, references } =
            NEEDLE.draft(size, place, (&niah.words, &niah.essay), random);
        Ok(Sample {
            chunks: chunks(&runs, Some(niah.chunk_tokens), measure)?,
            pages: Vec::new(),
            scoring: Scoring::new(Metric::MatchAll, references),
            answer_tokens: ANSWER_TOKENS,
            uses_template: true,
            id: None,
            lead,
            query,
            begun,
        })
    }
}

impl Suite for Niah {
    fn made_of(&self) -> Vec<String> {
        vec![
            "one number in an essay, asked for by two words; made here from the seed".to_owned(),
            format!("essays: {}", self.essay.label),
        ]
    }

    fn cells(&self) -> Vec<Cell> {
        let at = |&length: &usize| {
            self.depths.iter().map(move |&depth| Cell { depth: Some(depth), ..Cell::at(TASK, length) })
        };
        self.lengths.iter().flat_map(at).collect()
    }

    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let (length, depth) = (cell.length.expect("cells have lengths"), cell.depth.expect("cells have depths"));
        self.sizes.fitted(cell, number, measure, &AtDepth { niah: self, length, depth, measure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{asked, count_words, data};

    #[test]
    fn needles_stand_at_their_depths() {
        let folder = data();
        let measure = Measure::new(&count_words);
        let asked = Asked { lengths: vec![1000, 3000], chunk_tokens: vec![100], ..asked("niah", folder.path()) };
        let suite = open(&asked).unwrap();
        assert_eq!(suite.cells().len(), 10);
        for cell in suite.cells() {
            let sample = suite.sample(&cell, 2, &measure).unwrap();
            let context = sample.chunks.concat();
            let (before, behind) = context.split_once("One of the special magic numbers for ").expect("a needle");
            let (key, rest) = behind.split_once(" is: ").expect("a value");
            let (value, after) = rest.split_once('.').expect("an end");
            assert_eq!((sample.scoring.references[0].as_str(), sample.scoring.references.len()), (value, 1), "{cell}");
            assert!(sample.query.contains(&format!("magic number for {key} mentioned")), "{}", sample.query);
            let (before, after) = (count_words(before).unwrap(), count_words(after).unwrap());
            let depth = 100.0 * before as f64 / (before + after) as f64;
            assert!((depth - cell.depth.unwrap() as f64).abs() < 1.0, "{cell}: {depth}");
            let whole = format!("One of the special magic numbers for {key} is: {value}.");
            assert_eq!(sample.chunks.iter().filter(|chunk| chunk.contains(&whole)).count(), 1, "{cell}");
            let tokens = measure.length(&sample).unwrap();
            assert!((cell.length.unwrap() - 20..=cell.length.unwrap()).contains(&tokens), "{cell}: {tokens}");
        }
        let at = |depth, number| suite.sample(&Cell { depth: Some(depth), ..Cell::at("niah", 1000) }, number, &measure);
        assert_eq!(at(0, 1).unwrap().scoring, at(75, 1).unwrap().scoring, "depths are compared on the same needles");
        assert_ne!(at(0, 1).unwrap().scoring, at(0, 2).unwrap().scoring);
    }
}
