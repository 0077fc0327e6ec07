//! Contexts of several passages, as LongBench's multi-document tasks have them: each begins with a
//! line `Passage 3:` or `Paragraph 3: ..`.

/// The words that begin a passage, before its number.
const WORDS: [&str; 2] = ["Passage ", "Paragraph "];

/// The passages of a context without the marks that begin them; nothing where it has less than two,
/// or text before the first.
pub fn passages(context: &str) -> Option<Vec<&str>> {
    let marked = marked_passages(context)?;
    marked.into_iter().map(|passage| Some(passage.split_once(':')?.1.trim_start_matches([' ', '\n']))).collect()
}

/// The same with their marks: one after the other they are the context.
pub fn marked_passages(context: &str) -> Option<Vec<&str>> {
    let word = WORDS.into_iter().find(|word| number_behind(context, word).is_some())?;
    let mut starts = vec![0];
    let mut wanted = 2;
    for (at, _) in context.match_indices('\n') {
        // Only the next number is a mark: a passage's mention of another passage is text.
        if number_behind(&context[at + 1..], word) == Some(wanted) {
            starts.push(at + 1);
            wanted += 1;
        }
    }
    let ends = starts.iter().skip(1).copied().chain([context.len()]);
    let found: Vec<&str> = starts.iter().zip(ends).map(|(&start, end)| &context[start..end]).collect();
    (found.len() > 1).then_some(found)
}

/// The number in `Passage 3:` where a text begins so; a context begins with the first.
fn number_behind(text: &str, word: &str) -> Option<usize> {
    text.strip_prefix(word)?.split_once(':')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_found_by_their_numbers() {
        let context = "Passage 1:\nTitle\nText of Passage 2: no.\nPassage 7: no.\nPassage 2:\nMore\n\nPassage 3:\nLast";
        let marked = marked_passages(context).unwrap();
        assert_eq!(marked.concat(), context);
        let wanted = ["Title\nText of Passage 2: no.\nPassage 7: no.\n", "More\n\n", "Last"];
        assert_eq!(passages(context).unwrap(), wanted);
        assert_eq!(passages("Paragraph 1: A\n\nParagraph 2: B").unwrap(), ["A\n\n", "B"]);
        assert_eq!((passages("Passage 1:\nalone"), passages("A text.\nPassage 2: x")), (None, None));
    }
}
