//! From a request to the token ids of prefix, chunks and query.

use std::fmt;
use std::str::FromStr;

use crate::chunking::Chunking;
use crate::request::{Document, Request, Speaker, Turn};
use crate::template::{Frame, PromptPart, Template};
use crate::tokenize::{Piece, Tokenizer};
use crate::{Error, Result};

/// What stands before the first chunk.
///
/// With a chat template the prefix is the template's head: a text goes into its system message (or, if it takes none, in
/// front of the documents), `bos` and `none` add nothing to it. Where there is no head they mean what they say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prefix {
    /// A text, such as a system prompt.
    Text(String),
    /// The model's beginning-of-sequence token.
    Bos,
    /// Nothing: every chunk's first token becomes an attention sink.
    None,
}

/// Tokens of a text without documents that are computed behind its one chunk, the template's tail among them.
const TEXT_QUERY_TOKENS: usize = 32;

/// Tokens of a chunk where a request without documents is cut and nobody says otherwise.
pub const TEXT_CHUNK_TOKENS: usize = 2048;

/// How requests are read.
pub struct Intake<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's chat template, if it has one and it is wanted.
    pub template: Option<&'a Template>,
    /// Where the context is cut.
    pub chunking: &'a Chunking,
    /// What stands before the first chunk.
    pub prefix: &'a Prefix,
    /// The model's beginning-of-sequence token, if it has one.
    pub bos: Option<u32>,
}

/// A request as token ids.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prepared {
    /// Before the first chunk.
    pub prefix: Vec<u32>,
    /// The context, in the request's own order, with the text of each chunk.
    pub chunks: Vec<Piece>,
    /// After the context: the query and the template's tail.
    pub query: Vec<u32>,
    /// The text of the query without the template's; none where it came as token ids, or is the end of a longer text.
    pub query_text: Option<String>,
    /// What a reader of the result should know about the choices made here.
    pub notes: Vec<String>,
}

impl Prepared {
    /// The same as one query behind nothing: a prompt of which every token is to be told apart, and nothing is reused.
    #[must_use]
    pub fn without_context(self) -> Self {
        let Self { prefix, chunks, query, query_text, notes } = self;
        let context = chunks.into_iter().flat_map(|chunk| chunk.ids);
        let query = prefix.into_iter().chain(context).chain(query).collect();
        Self { prefix: Vec::new(), chunks: Vec::new(), query, query_text, notes }
    }

    /// Number of its tokens.
    pub fn token_count(&self) -> usize {
        self.prefix.len() + self.chunks.iter().map(|chunk| chunk.ids.len()).sum::<usize>() + self.query.len()
    }
}

/// Reads a request: head, chunks and query with tail are encoded each on its own. Documents, query and a prefix text are the
/// user's: no mark of the chat template arises from them.
///
/// # Errors
/// [`Error::EmptyDocument`] and [`Error::EmptyQuery`] for text that gives no token, [`Error::Template`],
/// [`Error::Tokenizer`].
pub fn prepare(request: &Request, intake: &Intake<'_>) -> Result<Prepared> {
    prepare_turns(&request.documents, &[], &request.query, intake)
}

/// The same with what a task says around documents and query: a lead, which stands between the template's head and the first document
/// and belongs to the prefix, so that all chunks see it; and the beginning of the answer, behind the template's tail.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_led(request: &Request, lead: &str, begun: &str, intake: &Intake<'_>) -> Result<Prepared> {
    let mut notes = Vec::new();
    let (frame, prefix) = opening(intake, &[], lead, &mut notes)?;
    let chunks = intake.chunking.cut(&request.documents, intake.tokenizer)?;
    let query = read_messages(&[], &request.query, (&frame, begun), intake.tokenizer)?;
    Ok(Prepared { prefix, chunks, query, query_text: Some(request.query.clone()), notes })
}

/// The same with earlier turns of the conversation. They ride with the query: behind the documents and before the last message, as
/// the chat template writes them. Without a template each is a line, `user: ..` or `assistant: ..`, and so is the last message;
/// behind it stands `assistant:`.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_turns(documents: &[Document], turns: &[Turn], query: &str, intake: &Intake<'_>) -> Result<Prepared> {
    let mut notes = Vec::new();
    let (frame, prefix) = opening(intake, turns, "", &mut notes)?;
    let chunks = intake.chunking.cut(documents, intake.tokenizer)?;
    let ids = read_messages(turns, query, (&frame, ""), intake.tokenizer)?;
    Ok(Prepared { prefix, chunks, query: ids, query_text: Some(query.to_owned()), notes })
}

/// Reads documents alone, to be prefilled ahead of use: prefix and chunks are those of a request with the same documents, and there
/// is no query.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_documents(documents: &[Document], intake: &Intake<'_>) -> Result<Prepared> {
    let mut notes = Vec::new();
    let (_, prefix) = opening(intake, &[], "", &mut notes)?;
    Ok(Prepared { prefix, chunks: intake.chunking.cut(documents, intake.tokenizer)?, notes, ..Prepared::default() })
}

/// The tokens of everything behind the documents: earlier turns, the query, the template's tail, and what the answer begins with.
fn read_messages(
    turns: &[Turn],
    query: &str,
    (frame, begun): (&Frame, &str),
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    if tokenizer.encode(query)?.ids.is_empty() {
        return Err(Error::EmptyQuery);
    }
    assert_eq!(frame.between.len(), turns.len(), "texts between so many turns");
    let mut parts = vec![PromptPart::Template(&frame.introduction)];
    for (turn, between) in turns.iter().zip(&frame.between) {
        parts.extend([PromptPart::User(&turn.text), PromptPart::Template(between)]);
    }
    parts.extend([PromptPart::User(query), PromptPart::Template(&frame.tail), PromptPart::User(begun)]);
    tokenizer.encode_parts(&parts)
}

/// What stands around a request: the template's frame, and the prefix with the lead as token ids.
fn opening(intake: &Intake<'_>, turns: &[Turn], lead: &str, notes: &mut Vec<String>) -> Result<(Frame, Vec<u32>)> {
    let speakers: Vec<Speaker> = turns.iter().map(|turn| turn.speaker).collect();
    let frame = match intake.template {
        Some(template) => template.frame_of(intake.prefix.text(), &speakers)?,
        None => lines(&speakers),
    };
    if frame.system_in_user {
        notes.push("the chat template takes no system message: the prefix stands before the documents".into());
    }
    let prefix = if frame.head().is_empty() {
        let mut prefix = bare_prefix(intake, notes)?;
        prefix.extend(intake.tokenizer.encode(lead)?.ids);
        prefix
    } else {
        let parts = frame.head_parts().into_iter().chain([PromptPart::User(lead)]);
        intake.tokenizer.encode_parts(&parts.collect::<Vec<_>>())?
    };
    if *intake.prefix == Prefix::None && !frame.head().is_empty() {
        notes.push("the chat template's head is the prefix; --template none drops it".into());
    }
    Ok((frame, prefix))
}

/// Reads messages without documents, of which the last is `text`. All of it but the last tokens is the context, whoever wrote it: one
/// chunk, which makes every method exact (behind the prefix and before the rest of the text, a single chunk is computed as the whole
/// prompt would be), or, where it is longer than `chunk_tokens`, chunks of so many tokens.
///
/// # Errors
/// [`Error::EmptyQuery`] for a text of no token; [`Error::Template`], [`Error::Tokenizer`].
pub fn prepare_text(turns: &[Turn], text: &str, chunk_tokens: usize, intake: &Intake<'_>) -> Result<Prepared> {
    let mut notes = Vec::new();
    let (frame, prefix) = opening(intake, turns, "", &mut notes)?;
    let ids = read_messages(turns, text, (&frame, ""), intake.tokenizer)?;
    let (chunks, query) = text_chunks(ids, chunk_tokens)?;
    Ok(Prepared { prefix, chunks, query, query_text: None, notes })
}

/// Reads a prompt of tokens, to which nothing is added. With documents the tokens are the query, and the prefix is as it is for
/// texts without a template; without, the model's beginning-of-sequence token, if it stands in front, is the prefix, and the rest is
/// cut as [`prepare_text`] does.
///
/// # Errors
/// As [`prepare_text`], and [`Error::EmptyDocument`].
pub fn prepare_ids(
    documents: &[Document],
    mut ids: Vec<u32>,
    chunk_tokens: usize,
    intake: &Intake<'_>,
) -> Result<Prepared> {
    if ids.is_empty() {
        return Err(Error::EmptyQuery);
    }
    if !documents.is_empty() {
        return Ok(Prepared { query: ids, ..prepare_documents(documents, intake)? });
    }
    let prefix = if intake.bos == ids.first().copied() { ids.drain(..1).collect() } else { Vec::new() };
    let (chunks, query) = text_chunks(ids, chunk_tokens)?;
    Ok(Prepared { prefix, chunks, query, ..Prepared::default() })
}

/// Tokens as chunks of `chunk_tokens` at most, and the last ones as what follows them.
fn text_chunks(mut ids: Vec<u32>, chunk_tokens: usize) -> Result<(Vec<Piece>, Vec<u32>)> {
    if ids.len() < 2 {
        // Nothing stands before a single token that could be reused.
        return if ids.is_empty() { Err(Error::EmptyQuery) } else { Ok((Vec::new(), ids)) };
    }
    let query = ids.split_off(ids.len().saturating_sub(TEXT_QUERY_TOKENS).max(1));
    let chunk = |ids: &[u32]| Piece { ids: ids.to_vec(), ..Piece::default() };
    Ok((ids.chunks(chunk_tokens.max(1)).map(chunk).collect(), query))
}

/// What stands around earlier turns where there is no template: nothing where there are none, else each message is a line.
fn lines(earlier: &[Speaker]) -> Frame {
    let Some(first) = earlier.first() else { return Frame::default() };
    let next = earlier[1..].iter().chain([&Speaker::User]);
    Frame {
        introduction: format!("{}: ", first.name()),
        between: next.map(|speaker| format!("\n{}: ", speaker.name())).collect(),
        tail: format!("\n{}:", Speaker::Assistant.name()),
        ..Frame::default()
    }
}

/// The prefix where no template gives one.
fn bare_prefix(intake: &Intake<'_>, notes: &mut Vec<String>) -> Result<Vec<u32>> {
    match (intake.prefix, intake.bos) {
        (Prefix::Text(text), _) => Ok(intake.tokenizer.encode(text)?.ids),
        (Prefix::Bos, Some(bos)) => Ok(vec![bos]),
        (Prefix::Bos, None) => {
            notes.push("the model has no beginning-of-sequence token: there is no prefix".into());
            Ok(Vec::new())
        }
        (Prefix::None, _) => Ok(Vec::new()),
    }
}

impl Prefix {
    fn text(&self) -> Option<&str> {
        match self {
            Prefix::Text(text) => Some(text),
            Prefix::Bos | Prefix::None => None,
        }
    }
}

impl FromStr for Prefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "bos" => Ok(Prefix::Bos),
            "none" => Ok(Prefix::None),
            "" => Err(Error::Setting {
                name: "--prefix",
                found: "``".into(),
                wanted: "must be a text, bos or none".into(),
            }),
            _ => Ok(Prefix::Text(text.to_owned())),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefix::Text(text) => f.write_str(text),
            Prefix::Bos => f.write_str("bos"),
            Prefix::None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests;
