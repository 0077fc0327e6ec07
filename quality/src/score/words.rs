//! Scores that look at words and numbers.

use std::collections::HashMap;

/// Words of a text for comparison: small letters, without punctuation and without articles.
fn words(text: &str) -> Vec<String> {
    let plain: String = text.to_lowercase().chars().filter(|letter| !letter.is_ascii_punctuation()).collect();
    let is_article = |word: &&str| ["a", "an", "the"].contains(word);
    plain.split_whitespace().filter(|word| !is_article(word)).map(str::to_owned).collect()
}

/// 1 if the words of an answer begin with those of the reference, else 0.
pub fn begins_with(answer: &str, reference: &str) -> f64 {
    let mut words = answer.split_whitespace();
    f64::from(u8::from(reference.split_whitespace().all(|word| words.next() == Some(word))))
}

/// Share of the references that an answer contains, in any case (`string_match_all` of RULER, Hsieh
/// et al. 2024, arXiv:2404.06654); 0 where there are none.
pub fn match_all(answer: &str, references: &[String]) -> f64 {
    let found = references.iter().filter(|reference| holds(answer, reference)).count();
    found as f64 / references.len().max(1) as f64
}

/// 1 if an answer contains the reference, in any case, else 0 (`string_match_part` of RULER takes
/// the best of the references).
pub fn match_part(answer: &str, reference: &str) -> f64 {
    f64::from(u8::from(holds(answer, reference)))
}

fn holds(answer: &str, reference: &str) -> bool {
    answer.to_lowercase().contains(&reference.to_lowercase())
}

/// F1 of the words of an answer and those of its reference, each counted as often as it occurs.
pub fn qa_f1(answer: &str, reference: &str) -> f64 {
    let (answer, reference) = (words(answer), words(reference));
    let mut left: HashMap<&str, usize> = HashMap::new();
    reference.iter().for_each(|word| *left.entry(word).or_default() += 1);
    let mut common = 0;
    for word in &answer {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    if common == 0 {
        return 0.0;
    }
    let (precision, recall) = (f64::from(common) / answer.len() as f64, f64::from(common) / reference.len() as f64);
    2.0 * precision * recall / (precision + recall)
}

/// 1 over the number of classes that the answer names, if the reference is one of them. A class
/// that is a part of the reference's name does not count; as in the published evaluation, the class
/// after a dropped one is skipped.
pub fn classification(answer: &str, reference: &str, classes: &[String]) -> f64 {
    let mut named: Vec<&String> = classes.iter().filter(|class| answer.contains(class.as_str())).collect();
    let mut index = 0;
    while index < named.len() {
        if reference.contains(named[index].as_str()) && named[index] != reference {
            named.remove(index);
        }
        index += 1;
    }
    if named.iter().any(|class| *class == reference) { 1.0 / named.len() as f64 } else { 0.0 }
}

/// Runs of digits.
fn numbers(text: &str) -> Vec<&str> {
    text.split(|letter: char| !letter.is_numeric()).filter(|run| !run.is_empty()).collect()
}

/// The share of an answer's numbers that are the one of the paragraph named in the reference
/// (`Paragraph 7`).
pub fn retrieval(answer: &str, reference: &str) -> f64 {
    let wanted = reference.split("Paragraph ").nth(1).map(numbers);
    let Some(wanted) = wanted.as_ref().and_then(|numbers| numbers.first()) else { return 0.0 };
    share(answer, wanted)
}

/// The share of an answer's numbers that are the reference.
pub fn count(answer: &str, reference: &str) -> f64 {
    share(answer, reference.trim())
}

fn share(answer: &str, wanted: &str) -> f64 {
    let found = numbers(answer);
    let right = found.iter().filter(|number| **number == wanted).count();
    if found.is_empty() { 0.0 } else { right as f64 / found.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_compared_without_what_does_not_count() {
        assert_eq!(qa_f1("The cat, a dog!", "cat dog"), 1.0);
        assert_eq!(qa_f1("cat", "dog"), 0.0);
        assert_eq!(qa_f1("", ""), 0.0);
        // Two words of three, and two of two.
        assert!((qa_f1("one two three", "two one") - 0.8).abs() < 1e-12);
        assert!((qa_f1("one one", "one") - 2.0 / 3.0).abs() < 1e-12, "each as often as it stands there");
    }

    #[test]
    fn right_answers_begin_with_the_expected_words() {
        assert_eq!([begins_with("1 2 3 . question", "1 2 3"), begins_with(" red", "red")], [1.0; 2]);
        assert_eq!([begins_with("1 2", "1 2 3"), begins_with("redder", "red"), begins_with("", "red")], [0.0; 3]);
    }

    #[test]
    fn references_are_found_anywhere_and_in_any_case() {
        let references: Vec<String> = ["Paris", "rome", "1234567", "x y"].map(str::to_owned).to_vec();
        assert_eq!(match_all("PARIS, Rome and 12345678", &references), 0.75);
        assert_eq!((match_all("", &references), match_all("x", &[])), (0.0, 0.0));
        assert_eq!((match_part("in paris.", "Paris"), match_part("in par is", "Paris")), (1.0, 0.0));
    }

    #[test]
    fn classes_share_what_an_answer_names() {
        let classes: Vec<String> = ["animal", "mammal", "sea mammal", "food"].map(str::to_owned).to_vec();
        assert_eq!(classification("It is an animal.", "animal", &classes), 1.0);
        assert_eq!(classification("animal or food", "animal", &classes), 0.5);
        assert_eq!(classification("a sea mammal", "sea mammal", &classes), 1.0, "a part of the name does not count");
        assert_eq!(classification("nothing", "animal", &classes), 0.0);
        assert_eq!(classification("food", "animal", &classes), 0.0);
    }

    #[test]
    fn numbers_count_by_their_share() {
        assert_eq!(retrieval("Paragraph 12", "Paragraph 12"), 1.0);
        assert_eq!(retrieval("12, or 7", "Paragraph 12"), 0.5);
        assert_eq!(retrieval("none", "Paragraph 12"), 0.0);
        assert_eq!(retrieval("1", "Paragraph 12"), 0.0);
        assert_eq!(count("there are 3, not 4", "3"), 0.5);
        assert_eq!(count("", "3"), 0.0);
    }
}
