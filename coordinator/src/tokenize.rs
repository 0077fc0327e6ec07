//! Text to token ids and back. Each piece of a prompt is encoded on its own, and no special token is added to it.
//!
//! A mark is a token that tells the model who speaks: one that the tokenizer calls special, or an added token that the chat
//! template writes. Marks arise from the template's text only. The same letters in a user's text are letters.

mod stream;

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use crate::request::read;
use crate::template::{PromptPart, Template};
use crate::{Error, Result};

pub use self::stream::TextStream;

/// A letter that no vocabulary of words has: its ids are the model's way to say that it does not know a text.
const UNKNOWN: &str = "\u{10000}";

/// A model's tokenizer.
pub struct Tokenizer {
    /// The tokenizer of the template's text: marks become their ids.
    marking: tokenizers::Tokenizer,
    /// The tokenizer of a user's text: marks are not looked for.
    plain: tokenizers::Tokenizer,
    /// The ids of marks.
    marks: HashSet<u32>,
}

/// A run of tokens and the text that it stands for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// The title of the document that it is of, if that has one.
    pub title: Option<String>,
    /// Token ids.
    pub ids: Vec<u32>,
    /// The text.
    pub text: String,
    /// The bytes of the text that each token stands for.
    pub spans: Vec<Range<usize>>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`; the chat template, if one is used, says which tokens besides the special ones are marks.
    ///
    /// # Errors
    /// [`Error::Unreadable`], [`Error::Tokenizer`] if it is none.
    pub fn from_file(path: &Path, template: Option<&Template>) -> Result<Self> {
        let tokenizer = Self::from_json(&read(path)?, template);
        tokenizer.map_err(|error| Error::Tokenizer(format!("{}: {error}", path.display())))
    }

    fn from_json(json: &str, template: Option<&Template>) -> std::result::Result<Self, tokenizers::Error> {
        let mut marking: tokenizers::Tokenizer = json.parse()?;
        marking.with_padding(None);
        marking.with_truncation(None)?;
        let written = template.map(Template::written).unwrap_or_default();
        let mut marks = marking.get_added_tokens_decoder();
        let is_written = |content: &str| !content.trim().is_empty() && written.contains(content);
        marks.retain(|_, token| token.special || is_written(&token.content));
        let mut plain = marking.clone();
        plain.add_special_tokens(marks.values().map(|token| token.clone().special(true)))?;
        plain.set_encode_special_tokens(true);
        let unknown = plain.encode(UNKNOWN, false)?;
        let marks = marks.into_keys().filter(|id| !unknown.get_ids().contains(id)).collect();
        Ok(Self { marking, plain, marks })
    }

    /// The tokens of a user's text. No mark is among them, whatever the text says.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Piece> {
        let mut cuts = vec![0, text.len()];
        loop {
            let mut piece = Piece { text: text.to_owned(), ..Piece::default() };
            for cut in cuts.windows(2) {
                piece.append(pieces_of(&self.plain, &text[cut[0]..cut[1]])?, cut[0]);
            }
            // A vocabulary of whole words can have a mark among its words. Cut in two it is not found there.
            let inside = |span: &Range<usize>| {
                let cut = text.ceil_char_boundary((span.start + 1).min(text.len()));
                (cut < span.end).then_some(cut)
            };
            let found: Vec<usize> = self.marks_in(&piece).filter_map(|token| inside(&piece.spans[token])).collect();
            if found.is_empty() {
                // What is left is a mark of one letter, for which there is no other word.
                let left = self.marks_in(&piece).collect();
                return Ok(piece.without(&left));
            }
            cuts.extend(found);
            cuts.sort_unstable();
            cuts.dedup();
        }
    }

    /// The tokens of a text that the template and the user wrote together: as of one text, unless the user's part would give
    /// a mark; then each part is encoded on its own.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    pub fn encode_parts(&self, parts: &[PromptPart<'_>]) -> Result<Vec<u32>> {
        let whole = parts.iter().map(PromptPart::text).collect::<String>();
        let joint = pieces_of(&self.marking, &whole)?;
        let mut start = 0;
        let mut templates = Vec::new();
        for part in parts {
            let end = start + part.text().len();
            if matches!(part, PromptPart::Template(_)) {
                templates.push(start..end);
            }
            start = end;
        }
        let by_template = |token: usize| {
            let span = without_space(&whole, &joint.spans[token]);
            templates.iter().any(|part| part.start <= span.start && span.end <= part.end)
        };
        if self.marks_in(&joint).all(by_template) {
            return Ok(joint.ids);
        }
        let encoded = parts.iter().map(|part| match part {
            PromptPart::Template(text) => pieces_of(&self.marking, text),
            PromptPart::User(text) => self.encode(text),
        });
        Ok(encoded.collect::<Result<Vec<_>>>()?.into_iter().flat_map(|piece| piece.ids).collect())
    }

    /// The text of tokens, special ones left out.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.marking.decode(ids, true).map_err(|error| Error::Tokenizer(error.to_string()))
    }

    /// The marks among a piece's tokens, by their places.
    fn marks_in(&self, piece: &Piece) -> impl Iterator<Item = usize> {
        (0..piece.ids.len()).filter(|&token| self.marks.contains(&piece.ids[token]))
    }
}

fn pieces_of(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Piece> {
    let encoding = tokenizer.encode(text, false).map_err(|error| Error::Tokenizer(error.to_string()))?;
    Ok(Piece {
        title: None,
        ids: encoding.get_ids().to_vec(),
        text: text.to_owned(),
        spans: encoding.get_offsets().iter().map(|&(start, end)| start..end).collect(),
    })
}

/// A span without the space at its ends, which a mark may take from its neighbours.
fn without_space(text: &str, span: &Range<usize>) -> Range<usize> {
    let all = text.get(span.clone()).unwrap_or_default();
    let start = span.start + all.len() - all.trim_start().len();
    start..start.max(span.start + all.trim_end().len())
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
            title: self.title.clone(),
            ids: self.ids[tokens].to_vec(),
            text: self.text[start..end].to_owned(),
            spans: spans.iter().map(relative).collect(),
        }
    }

    /// Adds the tokens of a part of the text that begins at `start`.
    fn append(&mut self, part: Self, start: usize) {
        self.ids.extend(part.ids);
        self.spans.extend(part.spans.into_iter().map(|span| span.start + start..span.end + start));
    }

    fn without(self, places: &HashSet<usize>) -> Self {
        let Self { ids, spans, .. } = &self;
        let tokens = ids.iter().copied().zip(spans.iter().cloned()).enumerate();
        let (ids, spans) = tokens.filter(|(place, _)| !places.contains(place)).map(|(_, token)| token).unzip();
        Self { ids, spans, ..self }
    }
}

#[cfg(test)]
pub(crate) mod tests;
