//! Contexts as runs of text that belong together, and how those become chunks.

use crate::error::Result;
use crate::suite::Measure;

/// Default tokens of a chunk where a text is cut: those that `serve` takes for texts without
/// documents.
pub use tributary_coordinator::TEXT_CHUNK_TOKENS;

/// A run of a context that is cut only where it must be. All runs, one after the other, are the
/// context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The text, with the space before it or the line break after it.
    pub text: String,
    /// Whether a document begins here. No chunk has parts of two documents.
    pub begins_document: bool,
    /// Whether it is never cut, for any size of chunks: a needle.
    pub is_whole: bool,
}

impl Run {
    /// A run that may be cut if it is longer than a chunk.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), begins_document: false, is_whole: false }
    }

    /// A run that is never cut.
    pub fn whole(text: impl Into<String>) -> Self {
        Self { is_whole: true, ..Self::new(text) }
    }
}

/// The runs of a document: its sentences, the first of which begins it.
pub fn document(text: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = sentences(text).into_iter().map(Run::new).collect();
    if let Some(first) = runs.first_mut() {
        first.begins_document = true;
    }
    runs
}

/// A text as its sentences, none longer than a line. Space between two belongs to the second, a
/// line break to the first, as in tokenizers. A false end (`Mr. Smith`) is cut too; only a chunk's
/// border depends on it.
pub fn sentences(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').flat_map(sentences_of_line).collect()
}

fn sentences_of_line(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut ended) = (0, false);
    for (index, letter) in line.char_indices() {
        match letter {
            '.' | '!' | '?' => ended = true,
            '"' | '\'' | ')' | ']' | '”' | '’' => {}
            '。' | '！' | '？' => {
                let end = index + letter.len_utf8();
                found.push(&line[start..end]);
                (start, ended) = (end, false);
            }
            ' ' if ended => {
                let after = line[index..].trim_start().chars().next();
                if after.is_some_and(|letter| !letter.is_lowercase()) {
                    found.push(&line[start..index]);
                    start = index;
                }
                ended = false;
            }
            _ => ended = false,
        }
    }
    found.push(&line[start..]);
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Chunks of at most `most_tokens` tokens, made of runs: a run is cut only if it is longer than a
/// chunk, and a whole run never. Without a number a document is a chunk.
///
/// # Errors
/// Returns an error if the tokenizer fails.
pub fn chunks(runs: &[Run], most_tokens: Option<usize>, measure: &Measure<'_>) -> Result<Vec<String>> {
    let most = most_tokens.unwrap_or(usize::MAX);
    let mut chunks: Vec<String> = Vec::new();
    let mut taken = 0;
    for run in runs {
        let tokens = if most == usize::MAX { 0 } else { measure.tokens(&run.text)? };
        let parts = if tokens > most && !run.is_whole { parts(&run.text, most, measure)? } else { Vec::new() };
        let goes_on = !run.begins_document && parts.is_empty() && taken + tokens <= most;
        match chunks.last_mut().filter(|_| goes_on) {
            Some(chunk) => {
                chunk.push_str(&run.text);
                taken += tokens;
            }
            None if parts.is_empty() => {
                chunks.push(run.text.clone());
                taken = tokens;
            }
            None => {
                taken = measure.tokens(parts.last().map_or("", String::as_str))?;
                chunks.extend(parts);
            }
        }
    }
    // A text without letters is no chunk: it goes to the one before it.
    let mut lettered: Vec<String> = Vec::new();
    for chunk in chunks {
        match lettered.last_mut().filter(|_| chunk.trim().is_empty()) {
            Some(before) => before.push_str(&chunk),
            None => lettered.push(chunk),
        }
    }
    Ok(lettered)
}

/// A text of more tokens than a chunk has, cut between words; a word that is longer than a chunk
/// stays whole.
fn parts(text: &str, most: usize, measure: &Measure<'_>) -> Result<Vec<String>> {
    let mut parts: Vec<String> = Vec::new();
    let mut taken = 0;
    for word in words(text) {
        let tokens = measure.tokens(word)?;
        match parts.last_mut().filter(|_| taken + tokens <= most) {
            Some(part) => {
                part.push_str(word);
                taken += tokens;
            }
            None => {
                parts.push(word.to_owned());
                taken = tokens;
            }
        }
    }
    Ok(parts)
}

/// A text as its words, each with the space before it.
pub fn words(text: &str) -> Vec<&str> {
    let mut starts: Vec<usize> = Vec::new();
    let mut before = None;
    for (index, letter) in text.char_indices() {
        let begins = letter.is_whitespace() && before.is_none_or(|before: char| !before.is_whitespace());
        if begins || index == 0 {
            starts.push(index);
        }
        before = Some(letter);
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(&start, end)| &text[start..end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::count_words;

    #[test]
    fn sentences_are_the_text() {
        let text = "One. Two \"three.\" Four?  Five v. six.\nSeven! (Eight.) Nine\n\nTen 1.5 and";
        let wanted = [
            "One.",
            " Two \"three.\"",
            " Four?",
            "  Five v. six.\n",
            "Seven!",
            " (Eight.)",
            " Nine\n",
            "\n",
            "Ten 1.5 and",
        ];
        assert_eq!(sentences(text), wanted);
        assert_eq!(sentences("一。二！three"), ["一。", "二！", "three"]);
        assert_eq!(sentences(""), Vec::<&str>::new());
        assert_eq!(words("a  b\nc "), ["a", "  b", "\nc", " "]);
    }

    #[test]
    fn chunks_are_the_runs_and_no_longer_than_asked() {
        let measure = Measure::new(&count_words);
        let mut runs: Vec<Run> =
            sentences("One two. Three four five six seven eight. Nine.").into_iter().map(Run::new).collect();
        runs.push(Run::whole(" A b c d e f."));
        runs.push(Run::new(" Ten."));
        let cut = |most| chunks(&runs, most, &measure).unwrap();
        let text: String = runs.iter().map(|run| run.text.as_str()).collect();
        let wanted = ["One two.", " Three four five", " six seven eight.", " Nine.", " A b c d e f.", " Ten."];
        assert_eq!(cut(Some(3)), wanted);
        assert_eq!(cut(None), [text.as_str()]);
        for most in 1..20 {
            let cut = cut(Some(most));
            assert_eq!(cut.concat(), text, "{most}");
            assert!(cut.iter().all(|chunk| count_words(chunk).unwrap() <= most.max(6)), "{most}: {cut:?}");
            assert!(cut.iter().any(|chunk| chunk.contains(" A b c d e f.")), "{most}");
        }
    }

    #[test]
    fn documents_are_not_put_together() {
        let measure = Measure::new(&count_words);
        let runs = [document("A b. C d.\n\n"), document("E f. G.")].concat();
        assert_eq!(chunks(&runs, None, &measure).unwrap(), ["A b. C d.\n\n", "E f. G."]);
        assert_eq!(chunks(&runs, Some(100), &measure).unwrap(), ["A b. C d.\n\n", "E f. G."]);
        assert_eq!(chunks(&runs, Some(2), &measure).unwrap(), ["A b.", " C d.\n\n", "E f.", " G."]);
    }
}
