//! Splitting of documents into chunks.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::error::{PlanError, setting};
use crate::picture::{PictureRules, ReadingTime};
use crate::request::{Document, DocumentPart};
use crate::tiling::Tiling;
use crate::tokenize::{Piece, Tokenizer};
use crate::{Error, Result};

/// Places at which the context is cut. No chunk spans two documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunking {
    /// One chunk a document.
    Documents,
    /// Each document is split at a text, which is removed; empty pieces are dropped.
    Separator(String),
    /// Slices of each document's tokens.
    Fixed {
        /// Length of a slice; a document's last one may be shorter.
        tokens: usize,
        /// Tokens that a slice shares with the one before it.
        overlap: usize,
    },
}

/// A text appended to a document that does not end with it, so that documents do not run into each
/// other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join(String);

impl Default for Join {
    fn default() -> Self {
        Self("\n".into())
    }
}

impl Join {
    /// Documents follow each other unchanged.
    pub fn nothing() -> Self {
        Self(String::new())
    }

    /// A document's text with the joining text.
    fn ended(&self, text: &str) -> String {
        if text.ends_with(&self.0) { text.to_owned() } else { format!("{text}{}", self.0) }
    }
}

impl FromStr for Join {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(Self(unescape(text)))
    }
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_default())
    }
}

/// Chunks of documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cut {
    /// Chunks in the documents' order.
    pub chunks: Vec<Piece>,
    /// Numbers, from 1, of documents without a token, which have no chunk.
    pub dropped: Vec<usize>,
    /// Time that their pictures took to be read.
    pub pictures: ReadingTime,
}

/// Parameters of cutting documents, besides the places of the cuts.
#[derive(Clone, Copy)]
pub struct CutBy<'a> {
    /// Text after each document.
    pub join: &'a Join,
    /// Encodes texts.
    pub tokenizer: &'a Tokenizer,
    /// The model's rules for pictures, if it reads some.
    pub pictures: Option<&'a PictureRules>,
    /// The tiles that pictures are cut into.
    pub tiling: Tiling,
    /// Maximum tokens of all documents together.
    pub most: usize,
}

impl Chunking {
    /// Cuts documents into chunks; each document, or each piece of it, is encoded on its own, with
    /// the joining text after it. A document without a token has no chunk.
    ///
    /// Pictures are cut into tiles alone. A document with whole pictures is one chunk where each
    /// document is; else each picture is a chunk, and texts between pictures are cut as others.
    /// Each tile is a chunk. Where each document is one, its texts go with the first tile of the
    /// picture after them, and the text after the last picture with its last tile.
    ///
    /// # Errors
    /// Returns [`PlanError::EmptyDocument`] if no document gives a token, [`Error::MoreTokens`],
    /// [`Error::Tokenizer`], [`Error::NoPictures`], or [`Error::Picture`].
    pub fn cut(&self, documents: &[Document], by: CutBy<'_>) -> Result<Cut> {
        let mut cutter = Cutter { chunking: self, by, left: by.most, reading: Duration::ZERO };
        let mut cut = Cut::default();
        for (index, document) in documents.iter().enumerate() {
            let pieces = cutter.document(document)?;
            let before = cut.chunks.len();
            let titled = |piece| Piece { title: document.title.clone(), ..piece };
            cut.chunks.extend(pieces.into_iter().filter(|piece| !piece.ids.is_empty()).map(titled));
            if cut.chunks.len() == before {
                cut.dropped.push(index + 1);
            }
        }
        cut.pictures = ReadingTime(cutter.reading);
        if cut.chunks.is_empty() && !documents.is_empty() {
            return Err(PlanError::EmptyDocument { number: 1, count: documents.len() }.into());
        }
        Ok(cut)
    }
}

/// Cuts one document after the other.
struct Cutter<'a> {
    chunking: &'a Chunking,
    by: CutBy<'a>,
    /// Tokens that may still come.
    left: usize,
    /// Time that pictures have taken.
    reading: Duration,
}

impl Cutter<'_> {
    fn document(&mut self, document: &Document) -> Result<Vec<Piece>> {
        if document.pictures.is_empty() {
            return self.text(&document.full_text(), !document.goes_on);
        }
        let mut parts = document.parts();
        // A picture ends with a mark, after which no other text runs into it.
        let ends_in_text = !document.goes_on && matches!(parts.last(), Some(DocumentPart::Text(_)));
        if *self.chunking == Chunking::Documents {
            if let Some(DocumentPart::Text(text)) = parts.last_mut().filter(|_| ends_in_text) {
                *text = self.by.join.ended(text);
            }
            return self.pages(&parts);
        }
        let (mut pieces, last) = (Vec::new(), parts.len() - 1);
        for (index, part) in parts.iter().enumerate() {
            match part {
                DocumentPart::Text(text) => pieces.extend(self.text(text, ends_in_text && index == last)?),
                DocumentPart::Picture(_) => pieces.extend(self.pages(std::slice::from_ref(part))?),
            }
        }
        Ok(pieces)
    }

    /// Pieces of a text; `is_joined` says whether the joining text follows it.
    fn text(&mut self, text: &str, is_joined: bool) -> Result<Vec<Piece>> {
        let Self { chunking, by: CutBy { join, tokenizer, .. }, .. } = *self;
        if is_empty(text, tokenizer)? {
            return Ok(Vec::new());
        }
        let whole = if is_joined { join.ended(text) } else { text.to_owned() };
        let Chunking::Separator(separator) = chunking else {
            let piece = self.encoded(&whole)?;
            return Ok(match chunking {
                Chunking::Fixed { tokens, overlap } => slices(&piece, *tokens, *overlap),
                Chunking::Documents | Chunking::Separator(_) => vec![piece],
            });
        };
        let (mut pieces, mut parts) = (Vec::new(), text.split(separator.as_str()).peekable());
        while let Some(part) = parts.next() {
            if !is_empty(part, tokenizer)? {
                let ends = is_joined || parts.peek().is_some();
                pieces.push(self.encoded(&if ends { join.ended(part) } else { part.to_owned() })?);
            }
        }
        Ok(pieces)
    }

    /// Texts and pictures as one piece, or as pieces with a tile each.
    fn pages(&mut self, parts: &[DocumentPart]) -> Result<Vec<Piece>> {
        let (rules, tiling) = (self.by.pictures.ok_or(Error::NoPictures)?, self.by.tiling);
        let last = parts.iter().rposition(|part| matches!(part, DocumentPart::Picture(_)));
        let (mut pages, mut page) = (Vec::new(), Piece::default());
        for (index, part) in parts.iter().enumerate() {
            match part {
                DocumentPart::Text(text) => page.push_text(self.encoded(text)?),
                DocumentPart::Picture(file) => {
                    // Before a pixel is decoded: the size follows from the file's header.
                    let tokens = file.rows(rules)? + 2;
                    self.left = self.left.checked_sub(tokens).ok_or(Error::MoreTokens { most: self.by.most })?;
                    let goes_on = tiling.is_whole() || Some(index) == last;
                    let began = Instant::now();
                    let picture = file.read(rules)?;
                    self.reading += began.elapsed();
                    pages.extend(std::mem::take(&mut page).with_picture(&picture, &rules.marks, tiling));
                    if goes_on {
                        page = pages.pop().unwrap_or_default();
                    }
                }
            }
        }
        pages.push(page);
        Ok(pages)
    }

    fn encoded(&mut self, text: &str) -> Result<Piece> {
        let piece = match self.by.tokenizer.encode_within(text, self.left) {
            Err(Error::MoreTokens { .. }) => return Err(Error::MoreTokens { most: self.by.most }),
            encoded => encoded?,
        };
        self.left -= piece.ids.len();
        Ok(piece)
    }
}

/// Whether a text gives no token.
fn is_empty(text: &str, tokenizer: &Tokenizer) -> Result<bool> {
    Ok(text.trim().is_empty() && tokenizer.encode(text)?.ids.is_empty())
}

/// Slices of `tokens`, each beginning `tokens − overlap` after the one before; the first that
/// reaches the end is the last.
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
    setting("--chunk", found, wanted)
}

/// `\n`, `\t`, `\r` and `\\` replaced by the characters they denote; every other backslash stays.
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
    use crate::tokenize::tests::{bytes, demo};

    fn by<'a>(join: &'a Join, tokenizer: &'a Tokenizer) -> CutBy<'a> {
        CutBy { join, tokenizer, pictures: None, tiling: Tiling::default(), most: usize::MAX }
    }

    fn texts(chunking: &str, documents: &[&str]) -> Result<Vec<String>> {
        let documents: Vec<Document> = documents.iter().map(|text| Document::of_text(*text)).collect();
        let cut = chunking.parse::<Chunking>()?.cut(&documents, by(&Join::nothing(), &demo()))?;
        Ok(cut.chunks.into_iter().map(|chunk| chunk.text).collect())
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
    fn a_document_without_a_token_is_dropped_and_some_must_be_left() {
        let documents = ["a", " \n", ""].map(Document::of_text);
        let cut = Chunking::Documents.cut(&documents, by(&Join::default(), &demo())).unwrap();
        assert_eq!((cut.chunks.len(), cut.dropped), (1, vec![2, 3]));
        assert_eq!(texts("separator:.", &["a", ". ."]).unwrap(), ["a"]);
        let error = texts("documents", &[" ", "\n"]).unwrap_err();
        assert!(matches!(error, Error::Plan(PlanError::EmptyDocument { number: 1, count: 2 })), "{error}");
    }

    #[test]
    fn documents_do_not_run_into_each_other() {
        let cut = |chunking: &str, join: &Join, text: &str| {
            let document = Document::of_text(text);
            let cut = chunking.parse::<Chunking>().unwrap().cut(&[document], by(join, &bytes())).unwrap();
            cut.chunks.into_iter().map(|chunk| chunk.text).collect::<Vec<_>>()
        };
        let newline = Join::default();
        assert_eq!(cut("documents", &newline, "one"), ["one\n"]);
        assert_eq!(cut("documents", &newline, "one\n"), ["one\n"]);
        assert_eq!(cut("documents", &Join::nothing(), "one"), ["one"]);
        assert_eq!(cut("documents", &r"\n---\n".parse().unwrap(), "one"), ["one\n---\n"]);
        assert_eq!(cut("separator:--", &newline, "one--two"), ["one\n", "two\n"]);
        assert_eq!(cut("3", &newline, "four"), ["fou", "r\n"]);
        assert_eq!(r"\n\t".parse::<Join>().unwrap().to_string(), r"\n\t");
    }

    #[test]
    fn a_title_stands_before_the_text() {
        let document = Document { title: Some("hugo".into()), ..Document::of_text("stays in") };
        let chunks = Chunking::Documents.cut(&[document], by(&Join::nothing(), &demo())).unwrap().chunks;
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
