//! A numbered list in which ten words come more often than the others. An example with its answer
//! precedes it.

use super::draft::Draft;
use crate::cut::Run;
use crate::material::Words;
use crate::random::Random;

/// Words that are asked for.
const COMMON: usize = 10;

/// Length from which on words come more often.
const LONG: usize = 4096;

/// Frequencies of words in a list: those of the answer, and the others.
#[derive(Clone, Copy)]
struct Often {
    common: usize,
    other: usize,
}

const LEAD: &str = "Below is a numbered list of words. In these words, some appear more often than others. \
                    Memorize the ones that appear most often.\n";
const QUERY: &str = "\nQuestion: What are the 10 most common words in the above list?";
const BEGUN: &str = " Answer: The top 10 words that appear most often in the list are:";

/// The least number of different words: one besides those asked for.
pub const LEAST: usize = COMMON + 1;

/// A list of `size` different words, for a request of `length` tokens.
///
/// # Panics
/// If there are fewer words.
pub fn draft(size: usize, length: usize, words: &Words, random: &mut Random) -> Draft {
    let (of_example, example_words, of_list) = match length {
        LONG.. => (Often { common: 10, other: 3 }, 40, Often { common: 30, other: 3 }),
        _ => (Often { common: 3, other: 1 }, 20, Often { common: 6, other: 1 }),
    };
    let (example, common) = list(example_words, of_example, words, random);
    let lead = format!("{LEAD}{}{QUERY}{BEGUN} {}\n{LEAD}", example.concat(), numbered(&common).concat());
    let (list, references) = list(size, of_list, words, random);
    let runs = list.into_iter().map(Run::whole).collect();
    Draft { lead, runs, query: QUERY.to_owned(), begun: BEGUN.to_owned(), references }
}

/// A list of `count` different words, and its most frequent ones.
fn list(count: usize, often: Often, words: &Words, random: &mut Random) -> (Vec<String>, Vec<String>) {
    let all: Vec<&str> = words.all.iter().map(String::as_str).collect();
    let drawn = random.some_of(&all, count);
    let (common, others) = drawn.split_at(COMMON);
    let mut list = [common.repeat(often.common), others.repeat(often.other)].concat();
    random.shuffle(&mut list);
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    (numbered(&owned(&list)), owned(common))
}

/// `1. word`, ` 2. word` and so on.
fn numbered(words: &[String]) -> Vec<String> {
    let space = |index| if index == 0 { "" } else { " " };
    words.iter().enumerate().map(|(index, word)| format!("{}{}. {word}", space(index), index + 1)).collect()
}
