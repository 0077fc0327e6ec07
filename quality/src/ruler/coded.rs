//! A text of coded words, whose numbers fall with their rank (Zipf's law with exponent 2); the
//! first rank is noise.

use std::collections::BTreeSet;

use super::draft::Draft;
use crate::cut::Run;
use crate::random::Random;

/// Letters of a coded word.
const LETTERS: usize = 6;

/// Tokens of a request for each word of the vocabulary, and the least words.
const TOKENS_A_WORD: usize = 50;
const LEAST_VOCABULARY: usize = 6;

/// Exponent of the law, and the sum of all its terms.
const EXPONENT: i32 = 2;
const ZETA: f64 = std::f64::consts::PI * std::f64::consts::PI / 6.0;

/// Number of words in the answer, after the one that is noise.
const ASKED: usize = 3;

const NOISE: &str = "...";
const LEAD: &str = "Read the following coded text and track the frequency of each coded word. \
                    Find the three most frequently appeared coded words. ";
const QUERY: &str = "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. \
                     What are the three most frequently appeared words in the above coded text?";
const BEGUN: &str = " Answer: According to the coded text above, the three most frequently appeared words are:";

/// The least size: there the last word of the answer comes twice, and the next one once.
pub const LEAST: usize = 53;

/// A text of about `size` words, for a request of `prompt_tokens` tokens.
pub fn draft(size: usize, prompt_tokens: usize, random: &mut Random) -> Draft {
    let count = (prompt_tokens / TOKENS_A_WORD).max(LEAST_VOCABULARY);
    let mut taken = BTreeSet::new();
    while taken.len() < count {
        taken.insert((0..LETTERS).map(|_| char::from(b'a' + random.below(26) as u8)).collect::<String>());
    }
    let mut vocabulary: Vec<String> = taken.into_iter().collect();
    random.shuffle(&mut vocabulary);
    vocabulary[0] = NOISE.to_owned();
    let often = |rank: usize| (size as f64 / (rank as f64).powi(EXPONENT) / ZETA) as usize;
    let ranked = vocabulary.iter().enumerate();
    let mut text: Vec<&str> =
        ranked.flat_map(|(index, word)| std::iter::repeat_n(word.as_str(), often(index + 1))).collect();
    random.shuffle(&mut text);
    let space = |index| if index == 0 { "" } else { " " };
    let runs = text.iter().enumerate().map(|(index, word)| Run::whole(format!("{}{word}", space(index))));
    Draft {
        lead: LEAD.to_owned(),
        runs: runs.collect(),
        query: QUERY.to_owned(),
        begun: BEGUN.to_owned(),
        references: vocabulary[1..=ASKED].to_vec(),
    }
}
