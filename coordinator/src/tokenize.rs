//! Text to token ids and back. Each piece of a prompt is encoded on its own, and no special token is added to it; special
//! tokens that stand in the text (a chat template's marks) become their ids.

use std::ops::Range;
use std::path::Path;

use crate::request::read;
use crate::{Error, Result};

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

/// A run of tokens and the text that it stands for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The text.
    pub text: String,
    /// The bytes of the text that each token stands for.
    pub spans: Vec<Range<usize>>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Unreadable`], [`Error::Tokenizer`] if it is none.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_json(&read(path)?).map_err(|error| Error::Tokenizer(format!("{}: {error}", path.display())))
    }

    fn from_json(json: &str) -> std::result::Result<Self, tokenizers::Error> {
        let mut inner: tokenizers::Tokenizer = json.parse()?;
        inner.with_padding(None);
        inner.with_truncation(None)?;
        Ok(Self { inner })
    }

    /// The tokens of a piece of text.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Piece> {
        let encoding = self.inner.encode(text, false);
        let encoding = encoding.map_err(|error| Error::Tokenizer(error.to_string()))?;
        Ok(Piece {
            ids: encoding.get_ids().to_vec(),
            text: text.to_owned(),
            spans: encoding.get_offsets().iter().map(|&(start, end)| start..end).collect(),
        })
    }

    /// The text of tokens, special ones left out.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.decode(ids, true).map_err(|error| Error::Tokenizer(error.to_string()))
    }
}

impl Piece {
    /// Some of its tokens, with the text between the first one's beginning and the last one's end.
    pub(crate) fn slice(&self, tokens: Range<usize>) -> Self {
        let spans = &self.spans[tokens.clone()];
        let start = spans.first().map_or(0, |span| span.start);
        let start = self.text.floor_char_boundary(start);
        let end = spans.iter().map(|span| span.end).max().unwrap_or(start).max(start);
        let end = self.text.ceil_char_boundary(end);
        let relative = |span: &Range<usize>| span.start.saturating_sub(start)..span.end.saturating_sub(start);
        Self {
            ids: self.ids[tokens].to_vec(),
            text: self.text[start..end].to_owned(),
            spans: spans.iter().map(relative).collect(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn demo() -> Tokenizer {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        Tokenizer::from_file(&root.join("models/demo/tokenizer.json")).unwrap()
    }

    #[test]
    fn no_special_token_is_added() {
        let tokenizer = demo();
        let piece = tokenizer.encode("question : hugo stays in").unwrap();
        assert_eq!(piece.ids.len(), 5);
        assert!(!piece.ids.contains(&1));
        let words: Vec<&str> = piece.spans.iter().map(|span| &piece.text[span.clone()]).collect();
        assert_eq!(words, ["question", ":", "hugo", "stays", "in"]);
    }

    #[test]
    fn special_tokens_in_the_text_become_their_ids() {
        let piece = demo().encode("<bos> question <eos>").unwrap();
        assert_eq!((piece.ids[0], piece.ids[2]), (1, 2));
        assert_eq!(piece.ids.len(), 3);
    }

    #[test]
    fn decoding_leaves_special_tokens_out() {
        let tokenizer = demo();
        let mut ids = tokenizer.encode("hugo stays in").unwrap().ids;
        ids.push(2);
        assert_eq!(tokenizer.decode(&ids).unwrap(), "hugo stays in");
    }

    #[test]
    fn a_slice_keeps_ids_and_text_together() {
        let piece = demo().encode("question : hugo stays in").unwrap();
        let slice = piece.slice(2..4);
        assert_eq!(slice.text, "hugo stays");
        assert_eq!(slice.spans, [0..4, 5..10]);
        assert_eq!(slice.ids, piece.ids[2..4]);
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        assert!(matches!(Tokenizer::from_file(&path), Err(Error::Unreadable { .. })));
        std::fs::write(&path, "{}").unwrap();
        let error = Tokenizer::from_file(&path).err().unwrap();
        assert!(error.to_string().contains("tokenizer.json"), "{error}");
    }
}
