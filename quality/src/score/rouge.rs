//! ROUGE-L over sentences (Lin 2004, section 3.2), as the Python package `rouge` has it, by which
//! LongBench scores summaries: the longest common subsequences of each sentence of the reference
//! with all of the answer's, each word counted once.

use std::collections::HashSet;

/// Keeps a quotient of nothing by nothing from being none.
const EPSILON: f64 = 1e-8;

/// F1 of ROUGE-L. Sentences end with a full stop; words are separated by spaces.
pub fn rouge_l(answer: &str, reference: &str) -> f64 {
    let (answer, reference) = (sentences(answer), sentences(reference));
    let all = |sentences: &[Vec<String>]| sentences.iter().flatten().cloned().collect::<HashSet<_>>().len();
    let (answer_words, reference_words) = (all(&answer), all(&reference));
    if answer_words == 0 || reference_words == 0 {
        return 0.0;
    }
    let mut common: HashSet<&String> = HashSet::new();
    for wanted in &reference {
        for said in &answer {
            common.extend(longest_common(wanted, said));
        }
    }
    let (precision, recall) = (common.len() as f64 / answer_words as f64, common.len() as f64 / reference_words as f64);
    2.0 * (precision * recall / (precision + recall + EPSILON))
}

/// Sentences with their words. One of nothing but space has one word, which is empty: so the
/// package counts.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let words = |sentence: &str| {
        let words: Vec<String> = sentence.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() { vec![String::new()] } else { words }
    };
    text.split('.').filter(|sentence| !sentence.is_empty()).map(words).collect()
}

/// The words of a longest common subsequence; of several the one that the package finds, walking
/// back from the end.
fn longest_common<'a>(a: &'a [String], b: &[String]) -> Vec<&'a String> {
    let width = b.len() + 1;
    let mut lengths = vec![0u32; (a.len() + 1) * width];
    for (i, left) in a.iter().enumerate() {
        for (j, right) in b.iter().enumerate() {
            lengths[(i + 1) * width + j + 1] = match left == right {
                true => lengths[i * width + j] + 1,
                false => lengths[i * width + j + 1].max(lengths[(i + 1) * width + j]),
            };
        }
    }
    let (mut i, mut j, mut found) = (a.len(), b.len(), Vec::new());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            found.push(&a[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_in_another_order_are_as_good() {
        assert!((rouge_l("one two. three four", "three four. one two") - 1.0).abs() < 1e-7);
        assert!(rouge_l("two one", "one two") < 0.6, "words in another order are not");
        assert_eq!((rouge_l("", "one"), rouge_l("one", ""), rouge_l("x", "y")), (0.0, 0.0, 0.0));
    }
}
