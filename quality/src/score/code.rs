//! Likeness of lines of code: Ratcliff and Obershelp's matching, as in Python's `difflib`, in whole
//! per cents as in LongBench.

use std::collections::HashMap;

/// Length from which a text's most common letters cannot begin a match: those of more than one in a
/// hundred, and one more.
const LONG: usize = 200;

/// Likeness of the first line of the answer that is neither a comment nor a fence, and the
/// reference; in whole per cents.
pub fn code_similarity(answer: &str, reference: &str) -> f64 {
    let is_code = |line: &&str| !["`", "#", "//"].iter().any(|mark| line.contains(mark));
    let line = answer.trim_start_matches('\n').split('\n').find(is_code).unwrap_or("");
    f64::from(per_cent(line, reference)) / 100.0
}

/// Likeness of two texts in whole per cents.
pub fn per_cent(a: &str, b: &str) -> u32 {
    if a.is_empty() || b.is_empty() {
        return 0;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let matched = Matcher::new(&a, &b).matched();
    (100.0 * (2.0 * matched as f64 / (a.len() + b.len()) as f64)).round_ties_even() as u32
}

struct Matcher<'a> {
    a: &'a [char],
    b: &'a [char],
    /// Places of each letter in `b`, unless it is too common.
    places: HashMap<char, Vec<usize>>,
}

/// Runs of both texts that are still to be matched: from and to, in each.
type Part = (usize, usize, usize, usize);

impl<'a> Matcher<'a> {
    fn new(a: &'a [char], b: &'a [char]) -> Self {
        let mut places: HashMap<char, Vec<usize>> = HashMap::new();
        for (place, &letter) in b.iter().enumerate() {
            places.entry(letter).or_default().push(place);
        }
        if b.len() >= LONG {
            places.retain(|_, places| places.len() <= b.len() / 100 + 1);
        }
        Self { a, b, places }
    }

    /// Letters in all matching runs: the longest one, and those on either side of it.
    fn matched(&self) -> usize {
        let mut parts = vec![(0, self.a.len(), 0, self.b.len())];
        let mut sum = 0;
        while let Some(part) = parts.pop() {
            let (a_from, a_to, b_from, b_to) = part;
            let (i, j, length) = self.longest(part);
            if length == 0 {
                continue;
            }
            sum += length;
            if a_from < i && b_from < j {
                parts.push((a_from, i, b_from, j));
            }
            if i + length < a_to && j + length < b_to {
                parts.push((i + length, a_to, j + length, b_to));
            }
        }
        sum
    }

    /// The longest run that both have in a part, the first of them in `a` and then in `b`: where it
    /// begins, and its length.
    fn longest(&self, (a_from, a_to, b_from, b_to): Part) -> (usize, usize, usize) {
        let (mut best_i, mut best_j, mut best) = (a_from, b_from, 0);
        let mut ending: HashMap<usize, usize> = HashMap::new(); // lengths of runs that end at a place of b
        for i in a_from..a_to {
            let mut next = HashMap::new();
            for &j in self.places.get(&self.a[i]).map_or(&[][..], Vec::as_slice) {
                if j < b_from {
                    continue;
                }
                if j >= b_to {
                    break;
                }
                let length = j.checked_sub(1).and_then(|before| ending.get(&before)).map_or(1, |length| length + 1);
                next.insert(j, length);
                if length > best {
                    (best_i, best_j, best) = (i + 1 - length, j + 1 - length, length);
                }
            }
            ending = next;
        }
        // Letters that are too common begin no run, but they lengthen one.
        while best_i > a_from && best_j > b_from && self.a[best_i - 1] == self.b[best_j - 1] {
            (best_i, best_j, best) = (best_i - 1, best_j - 1, best + 1);
        }
        while best_i + best < a_to && best_j + best < b_to && self.a[best_i + best] == self.b[best_j + best] {
            best += 1;
        }
        (best_i, best_j, best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_code_counts() {
        assert_eq!(code_similarity("\n# a comment\n// another\n```rust\nlet x = 1;\nmore", "let x = 1;"), 1.0);
        assert_eq!(code_similarity("```", "let x = 1;"), 0.0);
        assert_eq!(per_cent("abcd", "bcde"), 75);
        assert_eq!((per_cent("", "x"), per_cent("x", "x"), per_cent("x", "y")), (0, 100, 0));
    }
}
