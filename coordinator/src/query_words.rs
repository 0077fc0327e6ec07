//! The words that a request's documents share with its query: which rows have them, and which
//! chunks they name.
//!
//! Words are those of UAX #29 (section 4), in lower case. Words of the query that stand before the
//! documents too, as an instruction does that is told twice, do not count. A chunk's score is BM25
//! (Robertson and Zaragoza 2009, k1 = 1.2, b = 0.75) with the request's chunks as the collection:
//! Σ_w idf_w · f (k1 + 1) / (f + k1 (1 - b + b · length / mean length)), idf_w = ln(1 + (N - n_w +
//! 0.5) / (n_w + 0.5)) for a word of n_w of N chunks.
//!
//! The query names the chunk of the highest score. A text names another one by its opening, where
//! articles say what they are about: to the score of each next chunk, as a share of the highest,
//! comes the share of idf of its first words that chunks named before have.
//!
//! An opening tells what its chunk is about if one of its words comes again in the chunk and stands
//! in few others. Of the named chunks only those are told to selectors: the first rows of others
//! say no more than any.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use tributary_methods::TextHints;
use unicode_segmentation::UnicodeSegmentation;

use crate::intake::Prepared;
use crate::sentences;
use crate::template::OwnedPart;
use crate::tokenize::Piece;

const K1: f64 = 1.2;
const B: f64 = 0.75;

/// Words of a chunk that may say what it is about.
const OPENING_WORDS: usize = 8;

/// A word that says what a chunk is about stands in at most this divisor's share of all chunks.
const CHUNKS_DIVISOR: usize = 5;

/// The number of chunks in which such a word may always stand.
const LEAST_CHUNKS: usize = 2;

/// The ends of sentences of a request, the shared words, and of at most `most` named chunks those
/// whose openings tell what they are about. Without text there are none, and without names no words
/// are looked for.
pub fn hints(request: &Prepared, most: usize) -> TextHints {
    let collection = (most > 0).then(|| Collection::of(&request.chunks, &words_of_query(request)));
    let mut hints = TextHints::default();
    let (mut first, mut firsts) = (request.prefix.len() as u32, Vec::new());
    for (chunk, piece) in request.chunks.iter().enumerate() {
        let ends = sentences::ends(piece);
        let shared = collection.as_ref().map(|collection| collection.shared(chunk, piece, &ends)).unwrap_or_default();
        hints.shared_words.extend(shared.into_iter().map(|(place, weight)| (first + place, weight)));
        hints.sentence_ends.extend(ends.into_iter().map(|place| first + place));
        firsts.push(first);
        first += piece.ids.len() as u32;
    }
    if let Some(collection) = collection {
        let named = collection.named(most).into_iter().filter(|chunk| collection.opening_tells(*chunk));
        hints.named = named.map(|chunk| firsts[chunk]).collect();
    }
    hints
}

/// The words of a text in lower case, with their bytes.
fn words(text: &str) -> impl Iterator<Item = (Range<usize>, Cow<'_, str>)> {
    text.unicode_word_indices().map(|(start, word)| {
        let is_lower = word.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
        (start..start + word.len(), if is_lower { word.into() } else { word.to_lowercase().into() })
    })
}

/// The words of a request's text after its documents that do not stand before them.
fn words_of_query(request: &Prepared) -> HashSet<String> {
    let of = |text: &str| words(text).map(|(_, word)| word.into_owned()).collect::<HashSet<_>>();
    let all = |parts: &[OwnedPart], keep: fn(&OwnedPart) -> bool| -> HashSet<String> {
        parts.iter().filter(|part| keep(part)).flat_map(|part| of(part.part().text())).collect()
    };
    match (&request.texts, &request.query_text) {
        (Some([before, after]), _) => &all(after, OwnedPart::is_users) - &all(before, |_| true),
        (None, Some(text)) => of(text),
        (None, None) => HashSet::new(),
    }
}

/// A request's chunks as a collection of texts that a query searches. Words are numbered.
struct Collection {
    /// The words of each chunk, with their bytes.
    chunks: Vec<Vec<(Range<usize>, usize)>>,
    /// Number of chunks that have each word.
    counts: Vec<usize>,
    /// The idf of each word.
    weights: Vec<f64>,
    /// Whether the query has the word.
    is_asked: Vec<bool>,
}

impl Collection {
    fn of(pieces: &[Piece], query: &HashSet<String>) -> Self {
        let (mut numbers, mut is_asked): (HashMap<String, usize>, Vec<bool>) = (HashMap::new(), Vec::new());
        // The chunks that have each word, and the last of them.
        let mut counts: Vec<(usize, usize)> = Vec::new();
        let mut chunks = Vec::new();
        for (chunk, piece) in pieces.iter().enumerate() {
            let number = |(bytes, word): (Range<usize>, Cow<'_, str>)| {
                let number = numbers.get(&*word).copied().unwrap_or_else(|| {
                    counts.push((0, usize::MAX));
                    is_asked.push(query.contains(&*word));
                    numbers.insert(word.into_owned(), counts.len() - 1);
                    counts.len() - 1
                });
                if counts[number].1 != chunk {
                    counts[number] = (counts[number].0 + 1, chunk);
                }
                (bytes, number)
            };
            chunks.push(words(&piece.text).map(number).collect());
        }
        let counts: Vec<usize> = counts.into_iter().map(|(count, _)| count).collect();
        let idf = |&count: &usize| (((pieces.len() - count) as f64 + 0.5) / (count as f64 + 0.5)).ln_1p();
        Self { chunks, weights: counts.iter().map(idf).collect(), counts, is_asked }
    }

    /// BM25 of each chunk.
    fn scores(&self) -> Vec<f64> {
        let mean = self.chunks.iter().map(Vec::len).sum::<usize>() as f64 / self.chunks.len().max(1) as f64;
        let score = |chunk: &Vec<(Range<usize>, usize)>| {
            let mut asked: Vec<usize> =
                chunk.iter().map(|(_, word)| *word).filter(|&word| self.is_asked[word]).collect();
            asked.sort_unstable();
            let room = K1 * (1.0 - B + B * chunk.len() as f64 / mean);
            let term = |of_word: &[usize]| {
                let count = of_word.len() as f64;
                self.weights[of_word[0]] * count * (K1 + 1.0) / (count + room)
            };
            asked.chunk_by(|one, other| one == other).map(term).sum()
        };
        self.chunks.iter().map(score).collect()
    }

    /// At most `most` numbers of chunks that the query names, or those that it names; ties go to
    /// the earlier chunk.
    fn named(&self, most: usize) -> Vec<usize> {
        let scores = self.scores();
        let highest = scores.iter().copied().fold(0.0, f64::max);
        let (mut named, mut known) = (Vec::new(), vec![false; self.weights.len()]);
        while highest > 0.0 && named.len() < most {
            let worth = |chunk: usize| scores[chunk] / highest + self.opening_share(chunk, &known);
            let rest = (0..self.chunks.len()).filter(|chunk| !named.contains(chunk)).map(|chunk| (worth(chunk), chunk));
            let best = rest.reduce(|best, other| if other.0 > best.0 { other } else { best });
            let Some((_, chunk)) = best.filter(|(worth, _)| *worth > 0.0) else { break };
            for (_, word) in &self.chunks[chunk] {
                known[*word] = true;
            }
            named.push(chunk);
        }
        named
    }

    /// The share of the weight of a chunk's first words that are known.
    fn opening_share(&self, chunk: usize, known: &[bool]) -> f64 {
        let (mut all, mut found, mut before) = (0.0, 0.0, Vec::new());
        for &(_, word) in self.chunks[chunk].iter().take(OPENING_WORDS) {
            if !before.contains(&word) {
                all += self.weights[word];
                found += if known[word] { self.weights[word] } else { 0.0 };
                before.push(word);
            }
        }
        if all > 0.0 { found / all } else { 0.0 }
    }

    /// Whether one of a chunk's first words comes again in it and stands in few chunks.
    fn opening_tells(&self, chunk: usize) -> bool {
        let words = &self.chunks[chunk];
        let few = LEAST_CHUNKS.max(self.chunks.len() / CHUNKS_DIVISOR);
        let comes_again = |asked: usize| words.iter().filter(|(_, word)| *word == asked).nth(1).is_some();
        words.iter().take(OPENING_WORDS).any(|&(_, word)| self.counts[word] <= few && comes_again(word))
    }

    /// The tokens of a chunk in which a word of the query ends, by their places, with its weight:
    /// each word once a sentence. `ends` are the tokens with which its sentences end.
    fn shared(&self, chunk: usize, piece: &Piece, ends: &[u32]) -> Vec<(u32, f32)> {
        if piece.ids.is_empty() || piece.spans.len() != piece.ids.len() {
            return Vec::new();
        }
        let (mut sentence, mut seen) = (0, HashSet::new());
        let mut found: Vec<(u32, f32)> = Vec::new();
        for (bytes, word) in self.chunks[chunk].iter().filter(|(_, word)| self.is_asked[*word]) {
            let place = piece.spans.partition_point(|span| span.end < bytes.end).min(piece.ids.len() - 1) as u32;
            while ends.get(sentence).is_some_and(|&end| end < place) {
                sentence += 1;
                seen.clear();
            }
            if !seen.insert(*word) {
                continue;
            }
            let weight = self.weights[*word] as f32;
            match found.last_mut() {
                Some((last, sum)) if *last == place => *sum += weight,
                _ => found.push((place, weight)),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token for each word with the blanks and marks before it.
    fn piece(text: &str) -> Piece {
        let ends = text.unicode_word_indices().map(|(start, word)| start + word.len());
        let mut spans: Vec<std::ops::Range<usize>> = Vec::new();
        for end in ends {
            spans.push(spans.last().map_or(0, |span| span.end)..end);
        }
        Piece { ids: vec![7; spans.len()], text: text.to_owned(), spans, ..Piece::default() }
    }

    fn request(query: &str, chunks: &[&str]) -> Prepared {
        Prepared {
            prefix: vec![1, 2],
            chunks: chunks.iter().map(|text| piece(text)).collect(),
            query_text: Some(query.to_owned()),
            ..Prepared::default()
        }
    }

    const CHUNKS: [&str; 4] = [
        "Rain. It rains in many places of the world.",
        "Ada Byron. Ada was an English writer.",
        "The Engine. It was built by Babbage, and Ada Byron wrote of the Engine.",
        "Snow. It snows in the north. It snows in the south.",
    ];

    #[test]
    fn the_query_names_a_chunk_and_that_one_the_next_by_its_opening() {
        let asked = request("What has Babbage built?", &CHUNKS);
        assert_eq!(hints(&asked, 2).named, [2 + 9 + 7, 2 + 9], "rows of the engine and of Ada Byron");
        assert_eq!(hints(&asked, 1).named, [2 + 9 + 7]);
        let sentences = TextHints { named: vec![], shared_words: vec![], ..hints(&asked, 2) };
        assert_eq!(hints(&request("Why?", &CHUNKS), 2), sentences);
        assert_eq!(hints(&asked, 0), sentences, "without names no words");
    }

    #[test]
    fn an_opening_tells_if_a_word_of_it_comes_again_and_is_rare() {
        let tells = |second: &'static str| {
            let mut chunks = CHUNKS;
            chunks[1] = second;
            let asked = request("What has Babbage built?", &chunks);
            let collection = Collection::of(&asked.chunks, &words_of_query(&asked));
            let (second, named) = (2 + 9, hints(&asked, 4).named);
            assert!(collection.opening_tells(1) || !named.contains(&second), "{named:?}");
            collection.opening_tells(1)
        };
        assert!(!tells("Ada Byron. She was an English writer."), "no word comes again");
        assert!(!tells("Ada Byron. It, she, it."), "none but `it`, which every chunk has");
        assert!(tells("Ada Byron. English she was, English."));
        assert!(tells("Ada Byron, one of the people whom many know. Ada wrote."));
        assert!(!tells("Of people whom many know a person was Ada Byron. Ada wrote."), "after the first words");
    }

    #[test]
    fn a_rare_word_counts_more_and_once_a_sentence() {
        let found = hints(&request("SNOWS it, snow?", &CHUNKS), 1).shared_words;
        let from = 2 + 9 + 7 + 14;
        let rows: Vec<u32> = found.iter().map(|(row, _)| *row).collect();
        assert_eq!(rows, [2 + 1, 2 + 9 + 7 + 2, from, from + 1, from + 2, from + 6, from + 7]);
        let weight = |row: u32| found.iter().find(|(of, _)| *of == row).map(|(_, weight)| *weight);
        assert!(weight(from + 2) > weight(from + 1), "of four chunks one has `snows`, three have `it`: {found:?}");
        let twice = hints(&request("in it", &["In it. It is in it.", "in it and in it"]), 1).shared_words;
        let rows: Vec<u32> = twice.iter().map(|(row, _)| *row).collect();
        assert_eq!(rows, [2, 3, 4, 6, 8, 9], "twice in the first chunk's second sentence is once");
    }

    #[test]
    fn words_that_stand_before_the_documents_too_do_not_count() {
        let users = |text: &str| vec![OwnedPart::from(&crate::template::PromptPart::User(text))];
        let told = Prepared {
            texts: Some([users("Answer by one word of the text."), users("Answer by one word: snows it?")]),
            ..request("unused", &["One word. The text snows.", "It is text."])
        };
        let rows: Vec<u32> = hints(&told, 2).shared_words.iter().map(|(row, _)| *row).collect();
        assert_eq!(rows, [2 + 4, 2 + 5]);
    }

    #[test]
    fn rows_are_counted_after_the_prefix() {
        let mut asked = request("any", &["A b. C.", "unread", "D."]);
        asked.chunks[1] = Piece { ids: vec![1, 2, 3], ..Piece::default() };
        assert_eq!(hints(&asked, 2).sentence_ends, [2 + 1, 2 + 2, 2 + 3 + 3]);
    }

    #[test]
    fn ids_have_no_words() {
        let ids = Piece { ids: vec![1, 2, 3], ..Piece::default() };
        let request =
            Prepared { chunks: vec![ids.clone(), ids], query_text: Some("any".to_owned()), ..Prepared::default() };
        assert_eq!(hints(&request, 2), TextHints::default());
    }
}
