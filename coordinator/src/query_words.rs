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

use std::collections::{HashMap, HashSet};

use tributary_methods::TextHints;
use unicode_segmentation::UnicodeSegmentation;

use crate::intake::Prepared;
use crate::sentences;
use crate::template::OwnedPart;
use crate::tokenize::Piece;

const K1: f64 = 1.2;
const B: f64 = 0.75;

/// Words of a chunk that say what it is about.
const OPENING_WORDS: usize = 8;

/// The ends of sentences, the shared words and at most `most` named chunks of a request. Without
/// text there are none.
pub fn hints(request: &Prepared, most: usize) -> TextHints {
    let collection = Collection::of(&request.chunks, words_of_query(request));
    let named: Vec<usize> = collection.named(most);
    let mut hints = TextHints { sentence_ends: sentences::ends(request), ..TextHints::default() };
    let (mut first, mut firsts) = (request.prefix.len() as u32, Vec::new());
    for chunk in &request.chunks {
        firsts.push(first);
        hints.shared_words.extend(collection.shared(chunk).into_iter().map(|(place, weight)| (first + place, weight)));
        first += chunk.ids.len() as u32;
    }
    hints.named = named.into_iter().map(|chunk| firsts[chunk]).collect();
    hints
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.unicode_words().map(str::to_lowercase)
}

/// The words of a request's text after its documents that do not stand before them.
fn words_of_query(request: &Prepared) -> HashSet<String> {
    let of = |parts: &[OwnedPart], keep: fn(&OwnedPart) -> bool| -> HashSet<String> {
        parts.iter().filter(|part| keep(part)).flat_map(|part| words(part.part().text()).collect::<Vec<_>>()).collect()
    };
    match (&request.texts, &request.query_text) {
        (Some([before, after]), _) => &of(after, OwnedPart::is_users) - &of(before, |_| true),
        (None, Some(text)) => words(text).collect(),
        (None, None) => HashSet::new(),
    }
}

/// A request's chunks as a collection of texts that a query searches.
struct Collection {
    query: HashSet<String>,
    /// Words of each chunk.
    chunks: Vec<Vec<String>>,
    idf: HashMap<String, f64>,
}

impl Collection {
    fn of(pieces: &[Piece], query: HashSet<String>) -> Self {
        let chunks: Vec<Vec<String>> = pieces.iter().map(|piece| words(&piece.text).collect()).collect();
        let mut counts: HashMap<String, f64> = HashMap::new();
        for chunk in &chunks {
            for word in chunk.iter().collect::<HashSet<_>>() {
                *counts.entry(word.clone()).or_default() += 1.0;
            }
        }
        let all = chunks.len() as f64;
        let idf =
            counts.into_iter().map(|(word, count)| (word, ((all - count + 0.5) / (count + 0.5)).ln_1p())).collect();
        Self { query, chunks, idf }
    }

    /// The weight of a word that stands in some chunk.
    fn weight(&self, word: &str) -> f64 {
        self.idf.get(word).copied().unwrap_or(0.0)
    }

    /// BM25 of each chunk.
    fn scores(&self) -> Vec<f64> {
        let mean = self.chunks.iter().map(Vec::len).sum::<usize>() as f64 / self.chunks.len().max(1) as f64;
        let score = |chunk: &Vec<String>| {
            let mut counts: HashMap<&str, f64> = HashMap::new();
            for word in chunk.iter().filter(|word| self.query.contains(*word)) {
                *counts.entry(word).or_default() += 1.0;
            }
            let room = K1 * (1.0 - B + B * chunk.len() as f64 / mean);
            let mut terms: Vec<f64> =
                counts.into_iter().map(|(word, f)| self.weight(word) * f * (K1 + 1.0) / (f + room)).collect();
            terms.sort_by(f64::total_cmp); // the same sum in every run
            terms.into_iter().sum()
        };
        self.chunks.iter().map(score).collect()
    }

    /// At most `most` numbers of chunks that the query names, or those that it names; ties go to
    /// the earlier chunk.
    fn named(&self, most: usize) -> Vec<usize> {
        let scores = self.scores();
        let highest = scores.iter().copied().fold(0.0, f64::max);
        let (mut named, mut known) = (Vec::new(), HashSet::new());
        while highest > 0.0 && named.len() < most {
            let worth = |chunk: usize| scores[chunk] / highest + self.opening_share(chunk, &known);
            let rest = (0..self.chunks.len()).filter(|chunk| !named.contains(chunk)).map(|chunk| (worth(chunk), chunk));
            let best = rest.reduce(|best, other| if other.0 > best.0 { other } else { best });
            let Some((_, chunk)) = best.filter(|(worth, _)| *worth > 0.0) else { break };
            known.extend(self.chunks[chunk].iter());
            named.push(chunk);
        }
        named
    }

    /// The share of the weight of a chunk's first words that are known.
    fn opening_share(&self, chunk: usize, known: &HashSet<&String>) -> f64 {
        let (mut all, mut found) = (0.0, 0.0);
        for (at, word) in self.chunks[chunk].iter().take(OPENING_WORDS).enumerate() {
            if !self.chunks[chunk][..at].contains(word) {
                all += self.weight(word);
                found += if known.contains(word) { self.weight(word) } else { 0.0 };
            }
        }
        if all > 0.0 { found / all } else { 0.0 }
    }

    /// The tokens of a chunk in which a word of the query ends, by their places, with its weight:
    /// each word once a sentence.
    fn shared(&self, piece: &Piece) -> Vec<(u32, f32)> {
        if piece.spans.len() != piece.ids.len() {
            return Vec::new();
        }
        let (bounds, mut sentence, mut seen) = (sentences::bounds(&piece.text), 0, HashSet::new());
        let mut found: Vec<(u32, f32)> = Vec::new();
        for (start, word) in piece.text.unicode_word_indices() {
            while bounds.get(sentence).is_some_and(|&end| end <= start) {
                sentence += 1;
                seen.clear();
            }
            let (end, word) = (start + word.len(), word.to_lowercase());
            if !self.query.contains(&word) || seen.contains(&word) {
                continue;
            }
            let place = piece.spans.partition_point(|span| span.end < end).min(piece.ids.len() - 1) as u32;
            let weight = self.weight(&word) as f32;
            match found.last_mut() {
                Some((last, sum)) if *last == place => *sum += weight,
                _ => found.push((place, weight)),
            }
            seen.insert(word);
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
        "Ada Byron. She was an English writer.",
        "The Engine. It was built by Babbage, and Ada Byron wrote of it.",
        "Snow. It snows in the north. It snows in the south.",
    ];

    #[test]
    fn the_query_names_a_chunk_and_that_one_the_next_by_its_opening() {
        let asked = request("What has Babbage built?", &CHUNKS);
        assert_eq!(hints(&asked, 2).named, [2 + 9 + 7, 2 + 9], "rows of the engine and of Ada Byron");
        assert_eq!(hints(&asked, 1).named, [2 + 9 + 7]);
        assert_eq!(hints(&asked, 0).named, [] as [u32; 0]);
        assert_eq!(
            hints(&request("Why?", &CHUNKS), 2),
            TextHints { named: vec![], shared_words: vec![], ..hints(&asked, 2) }
        );
    }

    #[test]
    fn a_rare_word_counts_more_and_once_a_sentence() {
        let found = hints(&request("SNOWS it, snow?", &CHUNKS), 1).shared_words;
        let from = 2 + 9 + 7 + 13;
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
    fn ids_have_no_words() {
        let ids = Piece { ids: vec![1, 2, 3], ..Piece::default() };
        let request =
            Prepared { chunks: vec![ids.clone(), ids], query_text: Some("any".to_owned()), ..Prepared::default() };
        assert_eq!(hints(&request, 2), TextHints::default());
    }
}
