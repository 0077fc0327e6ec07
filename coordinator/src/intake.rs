//! Converts a request to the token ids of prefix, chunks and query.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde_json::{Map, Value};
use tributary_planner::Tokens;

use crate::chunk_prefix::{Head, blank_lines, pieces};
use crate::chunking::{Chunking, Cut, CutBy, Join};
use crate::conversation::{ChatOptions, Ending, Message};
use crate::error::{PlanError, setting};
use crate::free_text::{Cutting, separators, text_chunks};
use crate::picture::{PictureRules, ReadingTime};
use crate::request::{Document, Request};
use crate::template::{OwnedPart, Placed, PromptPart, Talk, Template, Written};
use crate::tiling::Tiling;
use crate::tokenize::{Piece, Tokenizer};
use crate::{Error, Result};

/// Text before the first chunk.
///
/// With a chat template the prefix is the template's head: a text goes into its system message (or,
/// if it takes none, in front of the documents), `bos` and `none` add nothing to it. Without a head
/// they apply literally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prefix {
    /// A text, such as a system prompt.
    Text(String),
    /// The model's beginning-of-sequence token.
    Bos,
    /// Nothing: every chunk's first token becomes an attention sink.
    None,
}

/// Default tokens of a chunk where a request without documents is cut.
pub const TEXT_CHUNK_TOKENS: usize = 2048;

/// Parameters of reading requests.
pub struct Intake<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's rules for pictures, if it reads some.
    pub pictures: Option<&'a PictureRules>,
    /// The model's chat template, if it has one and it is used.
    pub template: Option<&'a Template>,
    /// Places at which the context is cut.
    pub chunking: &'a Chunking,
    /// The tiles that pictures are cut into.
    pub tiling: Tiling,
    /// Text after each document.
    pub join: &'a Join,
    /// Default values for the template; a request may override them.
    pub kwargs: &'a Map<String, Value>,
    /// Text before the first chunk.
    pub prefix: &'a Prefix,
    /// The tokens that chunks are prefilled after; the whole prefix where absent.
    pub head: Option<&'a Head>,
    /// The model's beginning-of-sequence token, if it has one.
    pub bos: Option<u32>,
    /// Maximum tokens of a request's documents, of its prefix and of the rest: a longer text is not
    /// read to its end.
    pub most_tokens: usize,
}

/// A request as token ids.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prepared {
    /// Ids before the first chunk.
    pub prefix: Vec<u32>,
    /// Tokens of each piece of the lead, at the end of the prefix: chunks are prefilled without it.
    pub lead: Vec<u32>,
    /// The context, in the request's own order, with the text of each chunk.
    pub chunks: Vec<Piece>,
    /// Ids after the context: the query and the template's tail.
    pub query: Vec<u32>,
    /// The text of the query without the template's; absent if it came as token ids, or is the end
    /// of a longer text.
    pub query_text: Option<String>,
    /// The text before the documents and that after them, for a model with another tokenizer that
    /// reads the whole prompt; absent if they came as token ids, or without documents.
    pub texts: Option<[Vec<OwnedPart>; 2]>,
    /// Whether separators in a text cut it into chunks.
    pub separated: bool,
    /// Whether it is one text without documents, which is cut by its length alone.
    pub is_text: bool,
    /// Tokens after the end of the last message, which the template writes: a later turn of the
    /// conversation may have others there.
    pub closing: usize,
    /// Time that its pictures took to be decoded and resized.
    pub pictures: ReadingTime,
    /// Notes for readers of the result on the choices made here.
    pub notes: Vec<String>,
}

impl Prepared {
    /// The same as one query without context: a prompt whose tokens are all distinguished, and
    /// without reuse.
    ///
    /// # Errors
    /// Returns [`Error::PicturesThere`] if the context has pictures, which a query cannot have.
    pub fn without_context(self) -> Result<Self> {
        if self.picture_rows() > 0 {
            return Err(Error::PicturesThere("in a prompt without context: send them as documents"));
        }
        let Self { prefix, chunks, query, query_text, is_text, closing, notes, .. } = self;
        let context = chunks.into_iter().flat_map(|chunk| chunk.ids);
        let query = prefix.into_iter().chain(context).chain(query).collect();
        Ok(Self { query, query_text, is_text, closing, notes, ..Self::default() })
    }

    /// A copy of its tokens, for a plan.
    pub fn tokens(&self) -> Tokens {
        Tokens {
            prefix: self.prefix.clone(),
            lead: self.lead.clone(),
            chunks: self.chunks.iter().map(|chunk| chunk.ids.clone()).collect(),
            pictures: self.chunks.iter().map(|chunk| chunk.pictures.clone()).collect(),
            query: self.query.clone(),
            ..Tokens::default()
        }
    }

    /// Leaves out chunks that are stored. The tiles of a picture stay if one of them is missing.
    pub fn leave_out(&mut self, is_stored: impl Fn(&Piece) -> bool) {
        let groups = self.chunks.chunk_by(|_, next| next.is_later_tile());
        let is_missing = |group: &[Piece]| !group.iter().all(&is_stored);
        let stay = groups.flat_map(|group| std::iter::repeat_n(is_missing(group), group.len()));
        let mut stay = stay.collect::<Vec<bool>>().into_iter();
        self.chunks.retain(|_| stay.next().unwrap_or(true));
    }

    /// Ids that its chunks are prefilled after.
    pub fn head(&self) -> &[u32] {
        let lead: usize = self.lead.iter().map(|&tokens| tokens as usize).sum();
        &self.prefix[..self.prefix.len() - lead]
    }

    /// Number of its tokens that are rows of pictures.
    pub fn picture_rows(&self) -> usize {
        self.chunks.iter().map(Piece::picture_rows).sum()
    }

    /// Number of its tokens.
    pub fn token_count(&self) -> usize {
        self.prefix.len() + self.chunks.iter().map(|chunk| chunk.ids.len()).sum::<usize>() + self.query.len()
    }
}

/// A conversation to be read.
#[derive(Debug, Clone, Copy, Default)]
struct Said<'a> {
    messages: &'a [Message],
    options: Option<&'a ChatOptions>,
    /// Between the head and the first document.
    lead: &'a str,
    /// Beginning of the answer.
    begun: &'a str,
}

/// Reads a request: head, chunks and query with tail are each encoded on their own. Documents,
/// query and a prefix text are the user's: they produce no mark of the chat template.
///
/// # Errors
/// Returns [`PlanError::EmptyDocument`] and [`PlanError::EmptyQuery`] for text without a token,
/// [`Error::Template`], [`Error::Conversation`], or [`Error::Tokenizer`].
pub fn prepare(request: &Request, intake: &Intake<'_>) -> Result<Prepared> {
    prepare_led(request, "", "", intake)
}

/// The same with a task's texts around documents and query. The lead stands between the template's
/// head and the first document and belongs to the prefix, so that all chunks see it. The beginning
/// of the answer follows the template's tail.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_led(request: &Request, lead: &str, begun: &str, intake: &Intake<'_>) -> Result<Prepared> {
    let messages = [Message::new("user", request.query.as_str())];
    read(&request.documents, &Said { messages: &messages, lead, begun, ..Said::default() }, intake)
}

/// The same with earlier turns of the conversation. They belong to the query: after the documents
/// and before the last message, as the chat template writes them. Without a template each is a
/// line, `user: ..` or `assistant: ..`, and so is the last message, followed by `assistant:`.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_turns(
    documents: &[Document],
    messages: &[Message],
    options: &ChatOptions,
    intake: &Intake<'_>,
) -> Result<Prepared> {
    read(documents, &Said { messages, options: Some(options), ..Said::default() }, intake)
}

/// Reads documents alone, to be prefilled ahead of use: prefix and chunks are those of a request
/// with the same documents, and there is no query.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_documents(documents: &[Document], intake: &Intake<'_>) -> Result<Prepared> {
    let messages = [Message::new("user", "?")];
    let said = Said { messages: &messages, ..Said::default() };
    Ok(Prepared { query: Vec::new(), query_text: None, texts: None, ..read(documents, &said, intake)? })
}

/// Reads messages after documents.
fn read(documents: &[Document], said: &Said<'_>, intake: &Intake<'_>) -> Result<Prepared> {
    let Intake { join, tokenizer, pictures, tiling, most_tokens: most, .. } = *intake;
    let by = CutBy { join, tokenizer, pictures, tiling, most };
    let Cut { mut chunks, dropped, pictures: reading } = intake.chunking.cut(documents, by)?;
    let mut notes = intake.tokenizer.notes().to_vec();
    notes.extend((!dropped.is_empty()).then(|| {
        let numbers = dropped.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        format!("documents without a token are left out: {numbers} of {}", documents.len())
    }));
    let text: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
    let written = write(said, &text, intake, &mut notes)?;
    let query_text = said.messages.last().map(|message| message.content.clone());
    let Some(placed) = &written.documents else {
        if chunks.iter().any(|chunk| !chunk.pictures.is_empty()) {
            return Err(Error::PicturesThere(REWRITTEN));
        }
        notes.push("the chat template rewrites the documents: the whole prompt is computed as one text".into());
        let ids = intake.tokenizer.encode_parts(&written.parts(0..written.text.len()), true, intake.most_tokens)?;
        let (chunks, query) = text_chunks(ids, Cutting::Content(TEXT_CHUNK_TOKENS), &[])?;
        let closing = closing(&written, intake)?;
        let is_text = true;
        return checked(Prepared { chunks, query, query_text, closing, is_text, notes, ..Prepared::default() }, intake);
    };
    trim_chunks(&mut chunks, &placed.of, text.len(), intake.tokenizer)?;
    let (prefix, lead) = prefix(&written, placed.at.start, said.lead, intake, &mut notes)?;
    let mut parts = written.parts(placed.at.end..written.text.len());
    if parts.iter().all(|part| part.text().trim().is_empty()) && said.begun.is_empty() {
        return Err(PlanError::EmptyQuery.into());
    }
    parts.push(PromptPart::User(said.begun));
    let query = intake.tokenizer.encode_parts(&parts, false, intake.most_tokens)?;
    if query.is_empty() {
        return Err(PlanError::EmptyQuery.into());
    }
    let closing = closing(&written, intake)?.min(query.len());
    let owned = |parts: &[PromptPart<'_>]| parts.iter().map(OwnedPart::from).collect();
    let texts = Some([owned(&written.parts(0..placed.at.start)), owned(&parts)]);
    let pictures = reading;
    let prepared =
        Prepared { prefix, lead, chunks, query, query_text, texts, closing, pictures, notes, ..Prepared::default() };
    checked(prepared, intake)
}

/// Where pictures cannot be, if the template does not repeat the documents.
const REWRITTEN: &str = "where the chat template rewrites the documents: `--template none` goes without it";

/// Refuses a request of which a token outside of pictures stands for a row of a picture: ids of a
/// client, or a text that a tokenizer does not read as characters.
fn checked(prepared: Prepared, intake: &Intake<'_>) -> Result<Prepared> {
    let Some(PictureRules { marks, .. }) = intake.pictures else { return Ok(prepared) };
    let Prepared { prefix, chunks, query, .. } = &prepared;
    let strays = chunks.iter().any(|chunk| chunk.stray(marks.row).next().is_some());
    if strays || prefix.contains(&marks.row) || query.contains(&marks.row) {
        return Err(Error::PictureMark { id: marks.row });
    }
    Ok(prepared)
}

/// Tokens of the template's text after the last message.
fn closing(written: &Written, intake: &Intake<'_>) -> Result<usize> {
    let end = written.by_user.iter().map(|part| part.end).max().unwrap_or(0);
    let parts = [PromptPart::Template(&written.text[end..])];
    Ok(intake.tokenizer.encode_parts(&parts, false, intake.most_tokens)?.len())
}

/// Removes from the first and the last chunk the space that the template removed from the
/// documents' ends.
fn trim_chunks(chunks: &mut Vec<Piece>, kept: &Range<usize>, length: usize, tokenizer: &Tokenizer) -> Result<()> {
    if *kept == (0..length) {
        return Ok(());
    }
    let mut start = 0;
    for chunk in chunks.iter_mut() {
        let end = start + chunk.text.len();
        let of = kept.start.clamp(start, end)..kept.end.clamp(start, end);
        if of != (start..end) {
            *chunk = chunk.trimmed(of.start - start..of.end.max(of.start) - start, tokenizer)?;
        }
        start = end;
    }
    chunks.retain(|chunk| !chunk.ids.is_empty());
    Piece::align_tiles(chunks);
    Ok(())
}

/// The text of a conversation, by the template or without one.
fn write(said: &Said<'_>, documents: &str, intake: &Intake<'_>, notes: &mut Vec<String>) -> Result<Written> {
    let Some(template) = intake.template else { return Ok(lines(said, documents, intake.prefix.text())) };
    let talk = Talk { system: intake.prefix.text(), lead: said.lead, documents, messages: said.messages };
    let options = ChatOptions { kwargs: intake.kwargs.clone(), ..ChatOptions::default() };
    let written = match said.options {
        Some(own) => {
            let mut kwargs = options.kwargs;
            kwargs.extend(own.kwargs.clone());
            template.write(&talk, &ChatOptions { kwargs, ..own.clone() })?
        }
        None => template.write(&talk, &options)?,
    };
    if written.system_in_user {
        notes.push("the chat template takes no system message: the prefix stands before the documents".into());
    }
    let head = written.documents.as_ref().map_or("", |placed| &written.text[..placed.at.start]);
    if template.asks_for_the_date() && !head.is_empty() && intake.head.is_none() {
        notes
            .push("the chat template writes today's date before the documents: stored chunks are cold tomorrow".into());
    }
    Ok(written.with_marks_of_the_user(intake.tokenizer.marks()))
}

/// Token ids of the text before the documents, and the tokens of each piece of the lead at their
/// end.
fn prefix(
    written: &Written,
    end: usize,
    lead: &str,
    intake: &Intake<'_>,
    notes: &mut Vec<String>,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let head = written.text[..end].strip_suffix(lead).unwrap_or(&written.text[..end]);
    if *intake.prefix == Prefix::None && intake.template.is_some() && !head.is_empty() {
        notes.push("the chat template's head is the prefix; --template none drops it".into());
    }
    let mut ids = if head.is_empty() { bare_prefix(intake, notes)? } else { Vec::new() };
    let (bare, cuts) = (ids.len(), blank_lines(&written.text[..end]));
    let parts = written.parts(0..end);
    let (text, mut cuts) = intake.tokenizer.encode_parts_cut(&parts, true, &cuts, intake.most_tokens)?;
    ids.extend(text);
    cuts.iter_mut().for_each(|cut| *cut += bare);
    let Some(head) = intake.head else { return Ok((ids, Vec::new())) };
    let common = head.tokens_in_common(&ids);
    if intake.template.is_some() && common < head.tokens().min(ids.len()) {
        notes.push(format!(
            "the prompt begins with {common} of the template's first {} constant tokens: its chunks are apart from \
             those of other prompts",
            head.tokens()
        ));
    }
    let lead = pieces(head.tokens_of(&ids), ids.len(), &cuts);
    Ok((ids, lead))
}

/// Reads messages without documents, of which the last is `text`. All of it but the last tokens is
/// the context, regardless of its author. It is one chunk, which makes every method exact: after
/// the prefix and before the rest of the text, a single chunk is computed as the whole prompt would
/// be. If it is longer than `chunk_tokens`, it is cut where its content says so, into chunks of at
/// most that many tokens and a 32nd.
///
/// # Errors
/// Returns [`PlanError::EmptyQuery`] for a text without a token, [`Error::Template`],
/// [`Error::Conversation`], or [`Error::Tokenizer`].
pub fn prepare_text(
    messages: &[Message],
    options: &ChatOptions,
    chunk_tokens: usize,
    intake: &Intake<'_>,
) -> Result<Prepared> {
    let mut notes = intake.tokenizer.notes().to_vec();
    let said = Said { messages, options: Some(options), ..Said::default() };
    let written = write(&said, "", intake, &mut notes)?;
    let head = written.documents.as_ref().map_or(0, |placed| placed.at.start);
    let (prefix, lead) = prefix(&written, head, "", intake, &mut notes)?;
    let length = written.text.len();
    let cuts = separators(&written.text[head..], intake.chunking, head);
    let parts = written.parts(0..length);
    let (ids, mut cuts) = intake.tokenizer.encode_parts_cut(&parts, true, &cuts, intake.most_tokens)?;
    let cutting = match intake.chunking {
        Chunking::Fixed { tokens, .. } => Cutting::Fixed(*tokens),
        Chunking::Documents | Chunking::Separator(_) => Cutting::Content(chunk_tokens),
    };
    let (separated, closing) = (!cuts.is_empty(), closing(&written, intake)?);
    let is_text = !separated && !matches!(cutting, Cutting::Fixed(_));
    // The text is one: if the head's tokens begin it, they are the prefix, and the rest follows
    // them.
    let rest = if head == 0 { Some(ids.as_slice()) } else { ids.strip_prefix(prefix.as_slice()) };
    let Some(rest) = rest else {
        let (chunks, query) = text_chunks(ids, cutting, &cuts)?;
        return checked(Prepared { chunks, query, separated, is_text, closing, notes, ..Prepared::default() }, intake);
    };
    if rest.is_empty() {
        return Err(PlanError::EmptyQuery.into());
    }
    let before = ids.len() - rest.len();
    cuts.iter_mut().for_each(|cut| *cut = cut.saturating_sub(before));
    let (chunks, query) = text_chunks(rest.to_vec(), cutting, &cuts)?;
    let prepared = Prepared { prefix, lead, chunks, query, separated, is_text, closing, notes, ..Prepared::default() };
    checked(prepared, intake)
}

/// Reads a prompt of tokens, to which nothing is added. With documents the tokens are the query,
/// and the prefix is that of texts without a template. Without documents, the model's
/// beginning-of-sequence token, if it comes first, is the prefix, and the rest is cut as in
/// [`prepare_text`].
///
/// # Errors
/// Returns the errors of [`prepare_text`], and [`PlanError::EmptyDocument`].
pub fn prepare_ids(
    documents: &[Document],
    mut ids: Vec<u32>,
    chunk_tokens: usize,
    intake: &Intake<'_>,
) -> Result<Prepared> {
    if ids.is_empty() {
        return Err(PlanError::EmptyQuery.into());
    }
    if !documents.is_empty() {
        return checked(Prepared { query: ids, ..prepare_documents(documents, intake)? }, intake);
    }
    let prefix = if intake.bos == ids.first().copied() { ids.drain(..1).collect() } else { Vec::new() };
    let (chunks, query) = text_chunks(ids, Cutting::Content(chunk_tokens), &[])?;
    checked(Prepared { prefix, chunks, query, is_text: true, ..Prepared::default() }, intake)
}

/// A conversation without a template: a single message unchanged, otherwise a line each. The system
/// text belongs to the prefix, and comes first.
fn lines(said: &Said<'_>, documents: &str, system: Option<&str>) -> Written {
    let (instructions, turns): (Vec<&Message>, Vec<&Message>) =
        said.messages.iter().partition(|message| message.is_system());
    let mut written = Written::default();
    let mut push = |text: &str, by_user: bool| {
        let start = written.text.len();
        written.text.push_str(text);
        if by_user {
            written.by_user.push(start..written.text.len());
        }
    };
    let texts = instructions.iter().map(|message| message.content.as_str());
    let texts: Vec<&str> = texts.filter(|text| !text.trim().is_empty()).collect();
    let system = if texts.is_empty() { system.unwrap_or_default().to_owned() } else { texts.join("\n\n") };
    push(&system, true);
    push(said.lead, true);
    push(documents, true);
    let ending = said.options.map(|options| options.ending).unwrap_or_default();
    if let ([only], Ending::Answer) = (turns.as_slice(), ending) {
        push(&only.content, true);
    } else {
        for (index, turn) in turns.iter().enumerate() {
            push(&format!("{}{}: ", if index > 0 { "\n" } else { "" }, turn.role), false);
            push(&turn.content, true);
        }
        push(if ending == Ending::Answer { "\nassistant:" } else { "" }, false);
    }
    let at = system.len() + said.lead.len();
    written.documents = Some(Placed { at: at..at + documents.len(), of: 0..documents.len() });
    written
}

/// The token before everything if no template gives a head; a system text replaces it.
fn bare_prefix(intake: &Intake<'_>, notes: &mut Vec<String>) -> Result<Vec<u32>> {
    match (intake.prefix, intake.bos) {
        (Prefix::Bos, Some(bos)) => Ok(vec![bos]),
        (Prefix::Bos, None) => {
            notes.push("the model has no beginning-of-sequence token: there is no prefix".into());
            Ok(Vec::new())
        }
        (Prefix::None | Prefix::Text(_), _) => Ok(Vec::new()),
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
            "" => Err(setting("--prefix", "``", "must be a text, bos or none")),
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
mod picture_tests;
#[cfg(test)]
mod tests;
