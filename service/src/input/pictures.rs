//! Pictures of a body: whether its model reads them, how many they are, and pictures of messages,
//! which become documents.
//!
//! A picture is part of the context. Pictures stand where documents stand, before the text of the
//! first message: those of the first message of the user stay in their places there, and those of
//! the last one move in front of earlier turns.

use std::sync::Arc;

use tributary_coordinator::picture_name;
use tributary_coordinator::{
    Document, DocumentPart, Error, Message, PICTURES, PictureFile, PictureRules, PlacedPicture,
};

use super::Terms;
use super::content::{Content, Part};
use crate::error::ApiError;

/// Note on pictures of a message that has turns before it.
const MOVED: &str = "pictures of the last message stand before the first one, as documents do";

/// Note on a message without a text behind its last picture.
const QUESTION_BEFORE: &str = "the question stands before the picture: the text behind the last picture is the query, \
                               and there is none";

/// A message and its content, whose text is not in the message yet.
pub struct Said {
    /// The message, with an empty text.
    pub message: Message,
    /// Its texts and pictures.
    pub content: Content,
}

/// A conversation whose messages have no pictures any more.
#[derive(Debug)]
pub struct Talk {
    /// The messages, each with its text.
    pub messages: Vec<Message>,
    /// Pictures of the messages, and the texts between them, as documents.
    pub documents: Vec<Document>,
    /// Notes on their places.
    pub notes: Vec<String>,
}

/// A failure to read a picture, as that of a parameter.
pub fn refused(param: &str, error: &Error) -> ApiError {
    ApiError::parameter(param, error.to_string())
}

/// Checks the pictures of documents: whether the model reads them, their number, and the number of
/// their tokens, before any is decoded.
///
/// # Errors
/// Returns status 400 with both numbers.
pub fn check(documents: &[Document], param: &str, terms: &Terms<'_>) -> Result<(), ApiError> {
    let pictures = || documents.iter().flat_map(|document| &document.pictures);
    let count = pictures().count();
    if count == 0 {
        return Ok(());
    }
    let Some(rules) = terms.pictures else {
        return Err(ApiError::parameter(param, format!("model {} reads no pictures", terms.model)));
    };
    if count > PICTURES {
        return Err(ApiError::parameter(param, format!("{count} pictures; a request has at most {PICTURES}")));
    }
    let rows = |picture: &PlacedPicture| picture.file.rows(rules).map_err(|error| refused(param, &error));
    let tokens = pictures().map(rows).sum::<Result<usize, _>>()?;
    let most = terms.limits.prompt_tokens;
    if tokens > most {
        let message = format!("{tokens} tokens of pictures; this service takes at most {most} tokens of prompt");
        return Err(ApiError::parameter(param, message));
    }
    if tokens > terms.max_positions {
        return Err(ApiError::context_length(param, (tokens, 0), terms.max_positions));
    }
    Ok(())
}

/// Bytes that decoding the largest of some documents' pictures takes at most; 0 without pictures.
pub fn peak_bytes(documents: &[Document]) -> u64 {
    let pictures = documents.iter().flat_map(|document| &document.pictures);
    pictures.map(|picture| picture.file.peak_bytes()).max().unwrap_or(0)
}

/// Bytes of the resized pixels of some documents' pictures; those that the rules refuse count
/// nothing.
pub fn pixel_bytes(documents: &[Document], rules: &PictureRules) -> u64 {
    let pictures = documents.iter().flat_map(|document| &document.pictures);
    pictures.map(|picture| picture.file.pixel_bytes(rules).unwrap_or(0)).sum()
}

/// Makes documents of pictures in messages.
///
/// # Errors
/// Returns the message whose pictures cannot be read, or that may have none.
pub fn moved(all: Vec<Said>) -> Result<Talk, ApiError> {
    let of_user = |said: &Said| said.message.role == "user";
    let (first, last) = (all.iter().position(of_user), all.iter().rposition(of_user));
    let turns_before = |index: usize| all[..index].iter().any(|said| !said.message.is_system());
    let is_moved = last.is_some_and(|last| turns_before(last) && all[last].content.has_pictures());
    let mut talk = Talk { messages: Vec::new(), documents: Vec::new(), notes: Vec::new() };
    talk.notes.extend(is_moved.then(|| MOVED.to_owned()));
    for (index, Said { message, content }) in all.into_iter().enumerate() {
        let content = if content.has_pictures() {
            let param = format!("messages[{index}]");
            if message.role != "user" {
                let what = format!("pictures are read in messages of the user, not of `{}`", message.role);
                return Err(ApiError::parameter(param, what));
            }
            if first != Some(index) && last != Some(index) {
                return Err(ApiError::parameter(param, "pictures are read in the first and last message of the user"));
            }
            let (documents, text) = parted(content, &param)?;
            talk.documents.extend(documents);
            let is_note = text.trim().is_empty() && last == Some(index);
            talk.notes.extend(is_note.then(|| QUESTION_BEFORE.to_owned()));
            text
        } else {
            content.into_text()
        };
        talk.messages.push(Message { content, ..message });
    }
    Ok(talk)
}

/// The texts and pictures of a message up to the last picture, as a document each, and the text
/// behind it.
fn parted(content: Content, param: &str) -> Result<(Vec<Document>, String), ApiError> {
    let mut parts = content.parts;
    let after = match parts.last() {
        Some(Part::Text(_)) => parts.pop(),
        _ => None,
    };
    let text = match after {
        Some(Part::Text(text)) => text,
        _ => String::new(),
    };
    let count = parts.iter().filter(|part| matches!(part, Part::Picture(..))).count();
    let mut number = 0;
    let mut document = |part| {
        let part = match part {
            Part::Text(text) => DocumentPart::Text(text),
            Part::Picture(encoded, detail) => {
                number += 1;
                let file = PictureFile::new(picture_name(param, number, count), encoded, detail);
                DocumentPart::Picture(Arc::new(file.map_err(|error| refused(param, &error))?))
            }
        };
        // The message goes on behind each of its parts.
        Ok(Document { goes_on: true, ..Document::of_parts(None, [part]) })
    };
    let documents = parts.into_iter().map(&mut document).collect::<Result<_, ApiError>>()?;
    Ok((documents, text))
}
