//! Text to token ids and back. Each piece of a prompt is encoded on its own, and no special token
//! is added to it.
//!
//! A mark is a token that tells the model the speaker: one that the tokenizer calls special, or an
//! added token that the chat template writes. Only the template's text produces marks. The same
//! characters in a user's text stay characters.

mod bytes;
mod load;
mod long;
mod stream;

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tributary_protocol::Picture;

use crate::template::PromptPart;
use crate::{Error, Result};

use self::bytes::Writing;
use self::long::Cuts;
pub use self::stream::TextStream;

/// Prefixes of a text to find its tokens inside a longer one: one of these does not merge with it.
const BEFORE: [&str; 3] = ["\n", "a", "."];

/// A model's tokenizer.
pub struct Tokenizer {
    /// The tokenizer of the template's text: marks become their ids.
    marking: tokenizers::Tokenizer,
    /// The tokenizer of a user's text: it does not recognize marks.
    plain: tokenizers::Tokenizer,
    /// The ids of marks.
    marks: HashSet<u32>,
    /// The texts of marks.
    mark_texts: Vec<String>,
    /// Those that the chat template writes.
    written: Vec<String>,
    /// Whether it puts a space before the first word of a text.
    adds_space: bool,
    /// Places at which long texts are cut.
    cuts: Cuts,
    /// The token that begins a text, if there is one.
    bos: Option<u32>,
    /// The token that ends an answer, if the files beside it name one.
    eos: Option<u32>,
    /// Representation of bytes in its vocabulary.
    writing: Writing,
    /// A mark that the chat template renders and that is not a token.
    missing: Option<String>,
    /// Notes on the files that it was read from.
    notes: Vec<String>,
}

/// A run of tokens and the text that it stands for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// Title of its document, if that has one.
    pub title: Option<String>,
    /// Token ids.
    pub ids: Vec<u32>,
    /// The text.
    pub text: String,
    /// The bytes of the text that each token stands for. A picture is one character there.
    pub spans: Vec<Range<usize>>,
    /// Pictures among the tokens, in their order.
    pub pictures: Vec<Picture>,
}

impl Tokenizer {
    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends an answer, if the tokenizer's files name one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The id of the token with this text.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.marking.token_to_id(text)
    }

    /// A mark that the chat template writes and whose id is beyond a model's `vocab` ids, with the
    /// id.
    pub fn written_beyond(&self, vocab: usize) -> Option<String> {
        let marks = self.written.iter().filter_map(|text| Some((text, self.marking.token_to_id(text)?)));
        let mut beyond = marks.filter(|(_, id)| *id as usize >= vocab);
        beyond.next().map(|(text, id)| format!("`{}`, id {id}", text.escape_debug()))
    }

    /// A mark that the chat template renders and that the tokenizer would read as characters.
    pub fn missing_mark(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// The texts of marks.
    pub(crate) fn marks(&self) -> &[String] {
        &self.mark_texts
    }

    /// Notes on the files that it was read from.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The tokens of a user's text, as inside a longer text: no space is put before it. It contains
    /// no mark, for any text.
    ///
    /// # Errors
    /// Returns [`Error::Untokenizable`] if the tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Piece> {
        self.encode_within(text, usize::MAX)
    }

    /// The same for a text of at most `most` tokens. A longer one is not read to its end.
    ///
    /// # Errors
    /// Returns the errors of [`encode`](Self::encode), and [`Error::MoreTokens`].
    pub fn encode_within(&self, text: &str, most: usize) -> Result<Piece> {
        self.encode_at(text, false, most)
    }

    /// The same, at the beginning of a prompt or inside it.
    fn encode_at(&self, text: &str, starts: bool, most: usize) -> Result<Piece> {
        let mut cuts = vec![0, text.len()];
        loop {
            let mut piece = Piece { text: text.to_owned(), ..Piece::default() };
            for cut in cuts.windows(2) {
                let starts = starts && cut[0] == 0;
                piece.append(self.pieces_of(&self.plain, &text[cut[0]..cut[1]], starts, most)?, cut[0]);
            }
            at_most(piece.ids.len(), most)?;
            // A vocabulary of whole words can have a mark among its words. Cut in two it is not
            // found there.
            let inside = |span: &Range<usize>| {
                let cut = text.ceil_char_boundary((span.start + 1).min(text.len()));
                (cut < span.end).then_some(cut)
            };
            let found: Vec<usize> = self.marks_in(&piece).filter_map(|token| inside(&piece.spans[token])).collect();
            if found.is_empty() {
                // The rest is a mark of one character, for which there is no other word.
                let left = self.marks_in(&piece).collect();
                return Ok(piece.without(&left));
            }
            cuts.extend(found);
            cuts.sort_unstable();
            cuts.dedup();
        }
    }

    /// The tokens of a text that the template and the user wrote together: as of one text, unless
    /// the user's part would give a mark; then each part is encoded on its own. The text begins the
    /// prompt, or is inside it, and has at most `most` tokens.
    ///
    /// # Errors
    /// Returns [`Error::Untokenizable`] if the tokenizer fails, and [`Error::MoreTokens`].
    pub fn encode_parts(&self, parts: &[PromptPart<'_>], starts: bool, most: usize) -> Result<Vec<u32>> {
        Ok(self.encode_parts_cut(parts, starts, &[], most)?.0)
    }

    /// The same, and the tokens that begin at or after these bytes of the whole text; `None` if
    /// each part is encoded on its own.
    ///
    /// # Errors
    /// As [`encode_parts`](Self::encode_parts).
    pub fn encode_parts_cut(
        &self,
        parts: &[PromptPart<'_>],
        starts: bool,
        cuts: &[usize],
        most: usize,
    ) -> Result<(Vec<u32>, Vec<usize>)> {
        let whole = parts.iter().map(PromptPart::text).collect::<String>();
        let joint = self.pieces_of(&self.marking, &whole, starts, most)?;
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
            let token = |&cut: &usize| joint.spans.partition_point(|span| span.start < cut);
            let tokens = cuts.iter().map(token).collect();
            return Ok((joint.ids, tokens));
        }
        let encoded = parts.iter().enumerate().map(|(index, part)| match part {
            PromptPart::Template(text) => self.pieces_of(&self.marking, text, starts && index == 0, most),
            PromptPart::User(text) => self.encode_at(text, starts && index == 0, most),
        });
        let ids: Vec<u32> = encoded.collect::<Result<Vec<_>>>()?.into_iter().flat_map(|piece| piece.ids).collect();
        at_most(ids.len(), most)?;
        Ok((ids, Vec::new()))
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// Returns [`Error::Untokenizable`] if the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        caught(|| self.marking.decode(ids, true)).map_err(|error| Error::Untokenizable(error.to_string()))
    }

    /// The bytes that a token stands for by itself; `None` if its neighbours decide.
    pub fn bytes_of(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.marking.id_to_token(id)?;
        match self.marking.get_added_vocabulary().is_special_token(&token) {
            true => None,
            false if self.marking.get_added_tokens_decoder().contains_key(&id) => Some(token.into_bytes()),
            false => bytes::of_token(&token, self.writing),
        }
    }

    /// The tokens of a text at the beginning of a prompt, or inside it, where no space is put
    /// before it. A long text is cut at places that no token crosses, and is read no further than
    /// its first token beyond `most`.
    fn pieces_of(&self, tokenizer: &tokenizers::Tokenizer, text: &str, starts: bool, most: usize) -> Result<Piece> {
        let pieces = self.cuts.pieces(text).map_err(|bytes| {
            Error::Untokenizable(format!("a run of {bytes} bytes has no place where the tokenizer may be interrupted"))
        })?;
        let mut whole = Piece { text: text.to_owned(), ..Piece::default() };
        for (start, piece) in pieces {
            let own = self.piece_of(tokenizer, piece, starts && start == 0)?;
            if start == 0 && piece.len() < text.len() {
                // Near the final number: vectors that grow by doubling would hold twice that.
                let tokens = (own.ids.len() * (text.len() / piece.len() + 1)).min(most);
                whole.ids.reserve_exact(tokens);
                whole.spans.reserve_exact(tokens);
            }
            whole.append(own, start);
            at_most(whole.ids.len(), most)?;
        }
        Ok(whole)
    }

    /// The same for a text that is not long.
    fn piece_of(&self, tokenizer: &tokenizers::Tokenizer, text: &str, starts: bool) -> Result<Piece> {
        if starts || !self.adds_space || text.is_empty() {
            return pieces_of(tokenizer, text);
        }
        for before in BEFORE {
            let piece = pieces_of(tokenizer, &format!("{before}{text}"))?;
            let own = piece.spans.iter().take_while(|span| span.end <= before.len()).count();
            if piece.spans[own..].iter().all(|span| span.start >= before.len()) {
                let span = |span: &Range<usize>| span.start - before.len()..span.end - before.len();
                let spans = piece.spans[own..].iter().map(span).collect();
                let ids = piece.ids[own..].to_vec();
                return Ok(Piece { ids, text: text.to_owned(), spans, ..Piece::default() });
            }
        }
        pieces_of(tokenizer, text)
    }

    /// The marks among a piece's tokens, by their places.
    fn marks_in(&self, piece: &Piece) -> impl Iterator<Item = usize> {
        (0..piece.ids.len()).filter(|&token| self.marks.contains(&piece.ids[token]))
    }
}

fn at_most(tokens: usize, most: usize) -> Result<()> {
    if tokens > most { Err(Error::MoreTokens { most }) } else { Ok(()) }
}

fn pieces_of(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Piece> {
    let encoding = caught(|| tokenizer.encode(text, false)).map_err(|error| Error::Untokenizable(error.to_string()))?;
    Ok(Piece {
        ids: encoding.get_ids().to_vec(),
        text: text.to_owned(),
        spans: encoding.get_offsets().iter().map(|&(start, end)| start..end).collect(),
        ..Piece::default()
    })
}

thread_local! {
    /// Whether a panic of this thread comes from the tokenizer on a text, and becomes an error.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a tokenizer with its panics as errors: its patterns give up on some texts by a panic, which
/// is not printed.
fn caught<T>(
    work: impl FnOnce() -> std::result::Result<T, tokenizers::Error>,
) -> std::result::Result<T, tokenizers::Error> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                told(panic);
            }
        }));
    });
    GUARDED.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(false);
    done.unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("its pattern gives up on this text: {}", words.unwrap_or("it panicked")).into())
    })
}

/// A span without the space at its ends, which a mark may take from its neighbours.
fn without_space(text: &str, span: &Range<usize>) -> Range<usize> {
    let all = text.get(span.clone()).unwrap_or_default();
    let start = span.start + all.len() - all.trim_start().len();
    start..start.max(span.start + all.trim_end().len())
}

impl Piece {
    /// Some of its tokens, of which none is a picture's, with the text between the first one's
    /// beginning and the last one's end.
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
            pictures: Vec::new(),
        }
    }

    /// Adds the tokens of a part of the text that begins at `start`.
    pub(crate) fn append(&mut self, part: Self, start: usize) {
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
