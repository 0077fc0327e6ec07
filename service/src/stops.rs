//! Texts that end an answer. They are found across tokens: a possible beginning of one is held back
//! until that is known.

/// Looks for stop texts in a text that comes in pieces.
#[derive(Debug, Clone, Default)]
pub struct Stops {
    texts: Vec<String>,
    /// Whether the text that is found belongs to the answer.
    keeps: bool,
    /// Held text that may be the beginning of one of them.
    held: String,
}

impl Stops {
    /// Looks for these; none of them may be empty. The one that is found `keeps` its place at the
    /// end of the answer, or is left out.
    pub fn new(texts: Vec<String>, keeps: bool) -> Self {
        assert!(texts.iter().all(|text| !text.is_empty()), "a stop text has letters");
        Self { texts, keeps, held: String::new() }
    }

    /// Takes more text; gives the text that certainly belongs to the answer, and whether the answer
    /// ends there. Of several stop texts that one counts which is complete first, as if the text
    /// came letter by letter.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        let found = self.texts.iter().filter_map(|stop| Some((self.held.find(stop)?, stop.len())));
        if let Some((start, length)) = found.min_by_key(|&(start, length)| (start + length, start)) {
            self.held.truncate(if self.keeps { start + length } else { start });
            return (std::mem::take(&mut self.held), true);
        }
        let kept = self.texts.iter().map(|stop| beginning(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The held text, at the end of the answer.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of a text that are the beginning of a stop text.
fn beginning(text: &str, stop: &str) -> usize {
    let beginnings = stop.char_indices().map(|(index, _)| index).rev();
    beginnings.filter(|&index| index > 0).find(|&index| text.ends_with(&stop[..index])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer from these pieces of text, and whether it was stopped.
    fn read(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut stops = Stops::new(stops.iter().map(|&stop| stop.to_owned()).collect(), false);
        let mut all = String::new();
        for piece in pieces {
            let (text, ended) = stops.push(piece);
            all += &text;
            if ended {
                return (all, true);
            }
        }
        (all + &stops.rest(), false)
    }

    #[test]
    fn a_stop_text_is_found_however_the_text_is_cut() {
        let text = "one. two\n\nthree é🦀 four";
        let cases: [(&[&str], &str, bool); 8] = [
            (&[], text, false),
            (&["two"], "one. ", true),
            (&["\n\n"], "one. two", true),
            (&["é🦀"], "one. two\n\nthree ", true),
            (&["three", "two"], "one. ", true),
            (&["fourth", "x"], text, false),
            (&["one. two\n\nthr", "wo"], "one. t", true),
            (&["o", "one"], "", true),
        ];
        let letters: Vec<String> = text.chars().map(String::from).collect();
        for (stops, expected, stopped) in cases {
            for size in 1..=letters.len() {
                let pieces: Vec<String> = letters.chunks(size).map(|letters| letters.concat()).collect();
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                assert_eq!(read(stops, &pieces), (expected.to_owned(), stopped), "{stops:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn the_text_that_ends_an_answer_may_belong_to_it() {
        let mut stops = Stops::new(vec!["two".into()], true);
        assert_eq!(stops.push("one t"), ("one ".to_owned(), false));
        assert_eq!(stops.push("wo three"), ("two".to_owned(), true));
    }

    #[test]
    fn only_what_may_begin_a_stop_text_is_held_back() {
        let mut stops = Stops::new(vec!["aab".into(), "éé".into()], false);
        let steps = [("x", "x"), ("aa", ""), ("a", "a"), ("c", "aac"), ("é", ""), ("d", "éd")];
        for (text, expected) in steps {
            assert_eq!(stops.push(text), (expected.to_owned(), false), "after {text}");
        }
    }
}
