//! How documents become chunks.

use std::fmt;
use std::str::FromStr;

use crate::request::Document;
use crate::tokenize::{Piece, Tokenizer};
use crate::{Error, Result};

/// Where the context is cut. No chunk spans two documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunking {
    /// One chunk a document.
    Documents,
    /// Each document is split at a text, which goes away; empty pieces are dropped.
    Separator(String),
    /// Slices of each document's tokens.
    Fixed {
        /// Length of a slice; a document's last one may be shorter.
        tokens: usize,
        /// Tokens that a slice shares with the one before it.
        overlap: usize,
    },
}

impl Chunking {
    /// Cuts documents into chunks; each document, or each piece of it, is encoded on its own.
    ///
    /// # Errors
    /// [`Error::EmptyDocument`] if a document gives no token, [`Error::Tokenizer`].
    pub fn cut(&self, documents: &[Document], tokenizer: &Tokenizer) -> Result<Vec<Piece>> {
        let mut chunks = Vec::new();
        for (index, document) in documents.iter().enumerate() {
            let text = document.full_text();
            let pieces = match self {
                Chunking::Documents => vec![tokenizer.encode(&text)?],
                Chunking::Separator(separator) => {
                    text.split(separator.as_str()).map(|part| tokenizer.encode(part)).collect::<Result<Vec<_>>>()?
                }
                Chunking::Fixed { tokens, overlap } => slices(&tokenizer.encode(&text)?, *tokens, *overlap),
            };
            let before = chunks.len();
            let titled = |piece| Piece { title: document.title.clone(), ..piece };
            chunks.extend(pieces.into_iter().filter(|piece| !piece.ids.is_empty()).map(titled));
            if chunks.len() == before {
                return Err(Error::EmptyDocument { number: index + 1, count: documents.len() });
            }
        }
        Ok(chunks)
    }
}

/// Slices of `tokens`, each beginning `tokens − overlap` after the one before; the first that reaches the end is the last.
fn slices(document: &Piece, tokens: usize, overlap: usize) -> Vec<Piece> {
    let length = document.ids.len();
    let mut slices = Vec::new();
    let mut start = 0;
    while start < length {
        let end = length.min(start + tokens);
        slices.push(document.slice(start..end));
        if end == length {
            break;
        }
        start += tokens - overlap;
    }
    slices
}

impl FromStr for Chunking {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "documents" {
            return Ok(Chunking::Documents);
        }
        if let Some(separator) = text.strip_prefix("separator:") {
            let separator = unescape(separator);
            if separator.is_empty() {
                return Err(refused(text, "the separator must have at least one character"));
            }
            return Ok(Chunking::Separator(separator));
        }
        let (tokens, overlap) = text.split_once(':').unwrap_or((text, "0"));
        let (Ok(tokens), Ok(overlap)) = (tokens.parse::<usize>(), overlap.parse::<usize>()) else {
            return Err(refused(text, "must be documents, N, N:OVERLAP or separator:TEXT"));
        };
        if tokens == 0 {
            return Err(refused(text, "a chunk has at least 1 token"));
        }
        if overlap >= tokens {
            return Err(refused(text, "the overlap must be smaller than the chunk"));
        }
        Ok(Chunking::Fixed { tokens, overlap })
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chunking::Documents => f.write_str("documents"),
            Chunking::Separator(text) => write!(f, "separator:{}", text.escape_default()),
            Chunking::Fixed { tokens, overlap: 0 } => write!(f, "{tokens}"),
            Chunking::Fixed { tokens, overlap } => write!(f, "{tokens}:{overlap}"),
        }
    }
}

fn refused(found: &str, wanted: &str) -> Error {
    Error::Setting { name: "--chunk", found: found.into(), wanted: wanted.into() }
}

/// `\n`, `\t`, `\r` and `\\` as the characters that they stand for; every other backslash stays.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let escaped = if letter == '\\' { letters.clone().next() } else { None };
        let meant = match escaped {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('\\') => '\\',
            _ => {
                plain.push(letter);
                continue;
            }
        };
        plain.push(meant);
        letters.next();
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::tests::demo;

    fn texts(chunking: &str, documents: &[&str]) -> Result<Vec<String>> {
        let documents: Vec<Document> =
            documents.iter().map(|text| Document { title: None, text: (*text).into() }).collect();
        let chunks = chunking.parse::<Chunking>()?.cut(&documents, &demo())?;
        Ok(chunks.into_iter().map(|chunk| chunk.text).collect())
    }

    #[test]
    fn documents_are_cut_as_asked() {
        let cases: [(&str, &[&str], &[&str]); 9] = [
            ("documents", &["a b", "c"], &["a b", "c"]),
            ("separator:.", &["a . b ..", "c"], &["a ", " b ", "c"]),
            (r"separator:\n\n", &["a\n\nb\nc"], &["a", "b\nc"]),
            ("2", &["a b c d", "a b c"], &["a b", "c d", "a b", "c"]),
            ("9", &["a b c"], &["a b c"]),
            ("3", &["a b c"], &["a b c"]),
            ("3:1", &["a b c d e"], &["a b c", "c d e"]),
            ("3:1", &["a b c d e f"], &["a b c", "c d e", "e f"]),
            ("3:2", &["a b c d"], &["a b c", "b c d"]),
        ];
        for (chunking, documents, wanted) in cases {
            assert_eq!(texts(chunking, documents).unwrap(), wanted, "{chunking} of {documents:?}");
        }
    }

    #[test]
    fn a_document_without_a_token_is_refused() {
        let error = texts("separator:.", &["a", ". ."]).unwrap_err();
        assert!(matches!(error, Error::EmptyDocument { number: 2, count: 2 }), "{error}");
    }

    #[test]
    fn a_title_stands_before_the_text() {
        let document = Document { title: Some("hugo".into()), text: "stays in".into() };
        let chunks = Chunking::Documents.cut(&[document], &demo()).unwrap();
        assert_eq!(chunks[0].ids, demo().encode("hugo stays in").unwrap().ids);
        assert_eq!(chunks[0].title.as_deref(), Some("hugo"));
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        for text in ["", "0", "-1", "4:4", "4:5", "4:x", "words", "separator:", "0:0"] {
            let error = text.parse::<Chunking>().unwrap_err();
            assert!(error.to_string().starts_with("--chunk"), "{text}: {error}");
            assert_eq!(error.exit_code(), 64, "{text}");
        }
    }

    #[test]
    fn a_chunking_prints_as_it_is_written() {
        for text in ["documents", "128", "128:16", r"separator:\n\n", "separator:---"] {
            assert_eq!(text.parse::<Chunking>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn escapes_are_read() {
        assert_eq!(unescape(r"a\nb\t\\n\x"), "a\nb\t\\n\\x");
        assert_eq!(unescape("\\"), "\\");
    }
}
