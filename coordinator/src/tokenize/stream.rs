//! Text of tokens that arrive one by one: never a part of a character, and in the end the same as
//! of all tokens together.

use super::Tokenizer;
use crate::Result;

/// Replaces bytes that are no character: the tokens of a character may arrive one after the other.
const REPLACEMENT: char = '\u{fffd}';

/// The state of one text. Returned text is never taken back.
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    ids: Vec<u32>,
    /// The first token that the next text is read with: some tokens look different after others.
    from: usize,
    /// The first token whose text has not been returned.
    read: usize,
}

/// Maximum tokens of the prompt that precede an answer's text in decoding.
const BEFORE: usize = 8;

impl TextStream {
    /// The text of an answer after the tokens of its prompt: a space before its first word stays.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn behind(prompt: &[u32], tokenizer: &Tokenizer) -> Result<Self> {
        let before = &prompt[prompt.len().saturating_sub(BEFORE)..];
        // If the prompt's end is not a whole character, a later part of it is read: as a last
        // resort an empty one.
        for from in 0..before.len() {
            let text = tokenizer.decode(&before[from..])?;
            if !text.is_empty() && !text.ends_with(REPLACEMENT) && !text.starts_with(REPLACEMENT) {
                return Ok(Self { ids: before[from..].to_vec(), from: 0, read: before.len() - from });
            }
        }
        Ok(Self::default())
    }

    /// The text of all remaining tokens.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn all(&mut self, ids: &[u32], tokenizer: &Tokenizer) -> Result<String> {
        self.ids.extend_from_slice(ids);
        self.rest(tokenizer)
    }

    /// The text that a token completes; empty while a character is incomplete.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn push(&mut self, token: u32, tokenizer: &Tokenizer) -> Result<String> {
        self.ids.push(token);
        let text = self.unread(tokenizer)?;
        if text.ends_with(REPLACEMENT) || text.is_empty() {
            return Ok(String::new());
        }
        (self.from, self.read) = (self.read, self.ids.len());
        Ok(text)
    }

    /// The text that a token would add if it came next. A part of a character is the replacement
    /// sign, or empty.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn would_bring(&self, token: u32, tokenizer: &Tokenizer) -> Result<String> {
        let before = tokenizer.decode(&self.ids[self.from..])?;
        let all = tokenizer.decode(&[&self.ids[self.from..], &[token]].concat())?;
        let new = all.strip_prefix(before.trim_end_matches(REPLACEMENT)).unwrap_or(&all);
        Ok(new.to_owned())
    }

    /// The rest after the last token: an incomplete character, unchanged.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn rest(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let text = self.unread(tokenizer)?;
        (self.from, self.read) = (self.ids.len(), self.ids.len());
        Ok(text)
    }

    /// The text after the returned part.
    fn unread(&self, tokenizer: &Tokenizer) -> Result<String> {
        let before = tokenizer.decode(&self.ids[self.from..self.read])?;
        let all = tokenizer.decode(&self.ids[self.from..])?;
        Ok(all.get(before.len()..).unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::tests::{bytes, demo};

    /// The pieces of a text, token by token.
    fn pieces(tokenizer: &Tokenizer, text: &str) -> (Vec<String>, String) {
        let ids = tokenizer.encode(text).expect("tokens").ids;
        let mut stream = TextStream::default();
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id, tokenizer).expect("text")).collect();
        pieces.push(stream.rest(tokenizer).expect("text"));
        (pieces, tokenizer.decode(&ids).expect("text"))
    }

    #[test]
    fn words_come_as_in_the_whole_text() {
        let (pieces, whole) = pieces(&demo(), "hugo stays in the house . hugo stays");
        assert_eq!(pieces.concat(), whole);
        assert!(pieces.iter().filter(|piece| !piece.is_empty()).count() > 5, "{pieces:?}");
    }

    #[test]
    fn what_a_token_would_bring_is_what_it_brings() {
        let (tokenizer, text) = (demo(), "hugo stays in the house . hugo stays");
        let mut stream = TextStream::default();
        for id in tokenizer.encode(text).expect("tokens").ids {
            let expected = stream.would_bring(id, &tokenizer).expect("text");
            assert_eq!(stream.push(id, &tokenizer).expect("text"), expected);
        }
        let (tokenizer, mut stream) = (bytes(), TextStream::default());
        let ids = tokenizer.encode("a🦀").expect("tokens").ids;
        ids[..4].iter().for_each(|&id| _ = stream.push(id, &tokenizer).expect("text"));
        assert_eq!(
            stream.would_bring(ids[4], &tokenizer).expect("text"),
            "🦀",
            "the token that ends a character has it"
        );
    }

    #[test]
    fn no_character_is_split() {
        let tokenizer = bytes();
        for text in ["aé日本🦀z", "🦀🦀", "é"] {
            let (pieces, whole) = pieces(&tokenizer, text);
            assert_eq!((pieces.concat().as_str(), whole.as_str()), (text, text));
            assert!(pieces.iter().all(|piece| !piece.contains(REPLACEMENT)), "{pieces:?}");
            assert_eq!(pieces.iter().filter(|piece| !piece.is_empty()).count(), text.chars().count(), "{pieces:?}");
        }
    }

    #[test]
    fn an_incomplete_character_comes_at_the_end() {
        let tokenizer = bytes();
        let ids = tokenizer.encode("a🦀").expect("tokens").ids;
        let mut stream = TextStream::default();
        let text: String = ids[..3].iter().map(|&id| stream.push(id, &tokenizer).expect("text")).collect();
        assert_eq!(text, "a");
        assert!(stream.rest(&tokenizer).expect("text").starts_with(REPLACEMENT));
    }
}
