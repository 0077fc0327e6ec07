//! Values hidden in a haystack: eight of RULER's tasks, and the suite `niah`.

use std::collections::BTreeSet;

use super::draft::{Draft, NOISE, lines};
use crate::cut::Run;
use crate::material::{Essay, Words};
use crate::random::Random;

/// Text around needles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haystack {
    /// The same line again and again.
    Noise,
    /// Other needles.
    Needles,
    /// A text.
    Essay,
}

/// Form of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An adjective and a noun.
    Word,
    /// Seven digits.
    Number,
    /// A UUID of version 4.
    Uuid,
}

impl Form {
    /// The word for several of them.
    fn plural(self) -> &'static str {
        match self {
            Form::Word => "words",
            Form::Number => "numbers",
            Form::Uuid => "uuids",
        }
    }

    fn draw(self, words: &Words, random: &mut Random) -> String {
        match self {
            Form::Word => {
                let mut one = |list: &[String]| list[random.below(list.len())].clone();
                format!("{}-{}", one(&words.adjectives), one(&words.nouns))
            }
            Form::Number => (1_000_000 + random.below(9_000_000)).to_string(),
            Form::Uuid => {
                let mut bits = |count: u32| random.below(1 << count);
                let (a, b, c, d) = (bits(32), bits(16), 0x4000 | bits(12), 0x8000 | bits(14));
                format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{:012x}", bits(48))
            }
        }
    }
}

/// Number and form of needles, and their haystack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needles {
    /// Text around them.
    pub haystack: Haystack,
    /// Form of keys.
    pub key: Form,
    /// Form of values.
    pub value: Form,
    /// Keys.
    pub keys: usize,
    /// Values of each.
    pub values: usize,
    /// Keys that are asked for.
    pub queries: usize,
}

/// Place of needles in an essay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At different depths, drawn from 40 evenly spaced ones.
    Drawn,
    /// After this number of sentences.
    Behind(usize),
}

impl Needles {
    /// Needles in a haystack of `size` lines or sentences.
    ///
    /// # Panics
    /// If there are fewer lines than needles, or no words where keys are words.
    pub fn draft(&self, size: usize, place: Place, (words, essay): (&Words, &Essay), random: &mut Random) -> Draft {
        let mut taken = BTreeSet::new();
        let mut fresh = |form: Form, random: &mut Random| loop {
            let text = form.draw(words, random);
            if taken.insert(text.clone()) {
                return text;
            }
        };
        let mut known: Vec<(String, Vec<String>)> = Vec::new();
        for _ in 0..self.keys {
            let key = fresh(self.key, random);
            known.push((key, (0..self.values).map(|_| fresh(self.value, random)).collect()));
        }
        let of = |(key, values): &(String, Vec<String>)| -> Vec<String> {
            values.iter().map(|value| self.needle(key, value)).collect()
        };
        let mut needles: Vec<String> = known.iter().flat_map(of).collect();
        random.shuffle(&mut needles);
        let asked = random.some_of(&(0..self.keys).collect::<Vec<_>>(), self.queries);
        let depths = random.some_of(&DEPTHS.map(usize::from), needles.len());
        let runs = match self.haystack {
            Haystack::Essay => in_essay(&needles, &depths, size, place, essay),
            Haystack::Noise => in_lines(needles, vec![NOISE.to_owned(); size], random),
            Haystack::Needles => {
                let other = |_| self.needle(&fresh(self.key, random), &fresh(self.value, random));
                let others = (0..size).map(other).collect();
                in_lines(needles, others, random)
            }
        };
        let asked: Vec<&(String, Vec<String>)> = asked.into_iter().map(|index| &known[index]).collect();
        let keys: Vec<&str> = asked.iter().map(|(key, _)| key.as_str()).collect();
        let references = asked.iter().flat_map(|(_, values)| values.clone()).collect();
        let (lead, query, begun) = needle_prompt(self.value, self.queries * self.values == 1, &keys);
        Draft { lead, runs, query, begun, references }
    }

    fn needle(&self, key: &str, value: &str) -> String {
        format!("One of the special magic {} for {key} is: {value}.", self.value.plural())
    }
}

/// Text before and after the context, and beginning of the answer, for one value or several.
fn needle_prompt(value: Form, is_one: bool, keys: &[&str]) -> (String, String, String) {
    let keys = match keys {
        [before @ .., last] if !before.is_empty() => format!("{}, and {last}", before.join(", ")),
        _ => keys.concat(),
    };
    let plural = value.plural();
    if !is_one {
        return (
            format!(
                "Some special magic {plural} are hidden within the following text. Make sure to memorize it. \
                 I will quiz you about the {plural} afterwards.\n"
            ),
            format!("\nWhat are all the special magic {plural} for {keys} mentioned in the provided text?"),
            format!(" The special magic {plural} for {keys} mentioned in the provided text are"),
        );
    }
    let one = &plural[..plural.len() - 1];
    (
        format!(
            "A special magic {one} is hidden within the following text. Make sure to memorize it. \
             I will quiz you about the {one} afterwards.\n"
        ),
        format!("\nWhat is the special magic {one} for {keys} mentioned in the provided text?"),
        format!(" The special magic {one} for {keys} mentioned in the provided text is"),
    )
}

/// Forty depths from 0 to 100 per cent, rounded.
const DEPTHS: [u8; 40] = depths();

const fn depths() -> [u8; 40] {
    let mut depths = [0; 40];
    let mut index = 0;
    while index < 40 {
        // 100 / 39 of each step, rounded; no step ends on a half.
        depths[index] = ((200 * index + 39) / 78) as u8;
        index += 1;
    }
    depths
}

/// Needles as lines of their own at random places among others.
fn in_lines(needles: Vec<String>, others: Vec<String>, random: &mut Random) -> Vec<Run> {
    let mut places = random.some_of(&(0..others.len()).collect::<Vec<_>>(), needles.len());
    places.sort_unstable();
    let mut all: Vec<(String, bool)> = others.into_iter().map(|line| (line, false)).collect();
    for (place, needle) in places.into_iter().zip(needles).rev() {
        all.insert(place, (needle, true));
    }
    // Needles among needles are no more than lines, and none is cut.
    lines(all)
}

/// Needles between the sentences of an essay, which is repeated where it ends.
fn in_essay(needles: &[String], depths: &[usize], size: usize, place: Place, essay: &Essay) -> Vec<Run> {
    let mut places: Vec<usize> = match place {
        Place::Drawn => depths.iter().map(|depth| size * depth / 100).collect(),
        Place::Behind(sentences) => vec![sentences.min(size); needles.len()],
    };
    places.sort_unstable();
    let mut runs: Vec<Run> = Vec::new();
    let mut say = |text: &str, is_whole: bool| {
        let text = if runs.is_empty() { text.to_owned() } else { format!(" {text}") };
        runs.push(Run { is_whole, ..Run::new(text) });
    };
    let mut left = places.iter().zip(needles).peekable();
    for index in 0..=size {
        while let Some((_, needle)) = left.next_if(|(place, _)| **place == index) {
            say(needle, true);
        }
        if index < size {
            say(&essay.sentences[index % essay.sentences.len()], false);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_forty_even_ones() {
        let wanted: Vec<u8> = (0..40).map(|index| (100.0 * f64::from(index) / 39.0).round() as u8).collect();
        assert_eq!(DEPTHS.to_vec(), wanted);
    }

    #[test]
    fn prompts_are_those_of_the_paper() {
        let (lead, query, begun) = needle_prompt(Form::Uuid, true, &["a"]);
        assert!(lead.starts_with("A special magic uuid is hidden") && lead.ends_with("about the uuid afterwards.\n"));
        assert_eq!(query, "\nWhat is the special magic uuid for a mentioned in the provided text?");
        assert_eq!(begun, " The special magic uuid for a mentioned in the provided text is");
        let (lead, query, begun) = needle_prompt(Form::Number, false, &["a", "b", "c"]);
        assert!(lead.starts_with("Some special magic numbers are hidden"));
        assert!(query.contains("What are all the special magic numbers for a, b, and c mentioned"));
        assert!(begun.ends_with("text are"));
    }
}
