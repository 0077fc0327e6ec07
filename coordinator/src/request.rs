//! A user's request: documents and a question. Independent of tokens.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::{Deserialize, Deserializer};
use tributary_system::file::{utf8, without_mark};

use crate::error::PlanError;
use crate::{Error, Result};

/// Documents and a question about them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Request {
    /// The context, in its order.
    pub documents: Vec<Document>,
    /// The question.
    pub query: String,
    /// The right answer, if known.
    #[serde(default, deserialize_with = "text_or_number")]
    pub answer: Option<String>,
}

/// One document. In JSON a string, or an object with `text` and perhaps `title`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "DocumentForm")]
pub struct Document {
    /// Title, placed before the text on a line of its own.
    pub title: Option<String>,
    /// Text of the document.
    pub text: String,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a document is a string or {\"title\": .., \"text\": ..}")]
enum DocumentForm {
    Bare(String),
    Titled { title: Option<String>, text: String },
}

impl From<DocumentForm> for Document {
    fn from(form: DocumentForm) -> Self {
        match form {
            DocumentForm::Bare(text) => Self { title: None, text },
            DocumentForm::Titled { title, text } => Self { title, text },
        }
    }
}

impl Document {
    /// A document without a title, read from a text file.
    ///
    /// # Errors
    /// Returns [`PlanError::Unreadable`] or [`PlanError::TooLong`].
    pub fn from_file(path: &Path) -> Result<Self> {
        Ok(Self { title: None, text: read(path)? })
    }

    /// The documents of a folder, a text file each, in the order of their names; or of a file of
    /// JSON, one a line: a string, or an object with `text` and perhaps a `title`.
    ///
    /// # Errors
    /// Returns [`PlanError::Unreadable`], [`PlanError::TooLong`], [`PlanError::NoDocuments`], or
    /// [`Error::Line`] with the number of an invalid line.
    pub fn corpus(path: &Path) -> Result<Vec<Self>> {
        let documents = if path.is_dir() { Self::of_folder(path)? } else { Self::of_lines(path)? };
        if documents.is_empty() { Err(PlanError::NoDocuments.into()) } else { Ok(documents) }
    }

    fn of_folder(path: &Path) -> Result<Vec<Self>> {
        let unreadable = |cause| PlanError::Unreadable { path: path.into(), cause };
        let entries = std::fs::read_dir(path).map_err(unreadable)?;
        let mut files =
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>().map_err(unreadable)?;
        files.retain(|file| file.is_file());
        files.sort();
        files.iter().map(|file| Self::from_file(file)).collect()
    }

    fn of_lines(path: &Path) -> Result<Vec<Self>> {
        each_line(path, |line, text| {
            let cause = |error| Box::new(json_error(&error, path));
            serde_json::from_str(text).map_err(|error| Error::Line { path: path.into(), line, cause: cause(error) })
        })
    }

    /// Title and text, as the model reads them.
    pub fn full_text(&self) -> String {
        match &self.title {
            Some(title) if !title.is_empty() => format!("{title}\n{}", self.text),
            _ => self.text.clone(),
        }
    }
}

impl Request {
    /// A request from its parts.
    ///
    /// # Errors
    /// Returns [`PlanError::EmptyQuery`] or [`PlanError::NoDocuments`].
    pub fn new(documents: Vec<Document>, query: String) -> Result<Self> {
        Self { documents, query, answer: None }.checked()
    }

    /// A request from a JSON file. Unknown keys are ignored.
    ///
    /// # Errors
    /// Returns [`PlanError::Unreadable`], [`PlanError::TooLong`], [`Error::Json`], and the errors
    /// of [`new`](Self::new).
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_json(&read(path)?, path)
    }

    /// A request from JSON text; `path` is for messages.
    ///
    /// # Errors
    /// Returns [`Error::Json`], and the errors of [`new`](Self::new).
    pub fn from_json(json: &str, path: &Path) -> Result<Self> {
        let request: Self = serde_json::from_str(json).map_err(|error| json_error(&error, path))?;
        request.checked()
    }

    /// Requests from a file of JSON objects, one a line; empty lines are skipped.
    ///
    /// # Errors
    /// Returns [`PlanError::Unreadable`], [`PlanError::TooLong`], [`Error::NoRequests`], or
    /// [`Error::Line`] with the number of an invalid line.
    pub fn from_lines(path: &Path) -> Result<Vec<Self>> {
        let requests = each_line(path, |line, text| {
            Self::from_json(text, path).map_err(|error| match error {
                Error::Json { path, column, cause, .. } => Error::Json { path, line, column, cause },
                other => Error::Line { path: path.into(), line, cause: Box::new(other) },
            })
        })?;
        if requests.is_empty() {
            return Err(Error::NoRequests { path: path.into() });
        }
        Ok(requests)
    }

    fn checked(self) -> Result<Self> {
        if self.query.trim().is_empty() {
            return Err(PlanError::EmptyQuery.into());
        }
        if self.documents.is_empty() { Err(PlanError::NoDocuments.into()) } else { Ok(self) }
    }
}

/// Maximum bytes of a document, a request or a line: some ten times a text of a million tokens.
const TEXT_BYTES: u64 = 64 << 20;

/// The text of a user's own file, or pipe, without a byte order mark.
///
/// # Errors
/// Returns [`PlanError::Unreadable`] or [`PlanError::TooLong`].
pub(crate) fn read(path: &Path) -> Result<String> {
    let unreadable = |cause| PlanError::Unreadable { path: path.into(), cause };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(TEXT_BYTES + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(without_mark(bounded_text(bytes, path, None)?))
}

/// Results of a function for each line of a user's own file, or pipe, given the line's number from
/// 1. Empty lines are skipped. One line is in memory at a time.
///
/// # Errors
/// Returns [`PlanError::Unreadable`], [`PlanError::TooLong`], and the function's errors.
fn each_line<T>(path: &Path, mut of: impl FnMut(usize, &str) -> Result<T>) -> Result<Vec<T>> {
    let unreadable = |cause| PlanError::Unreadable { path: path.into(), cause };
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let mut made = Vec::new();
    for number in 1.. {
        let mut bytes = Vec::new();
        if file.by_ref().take(TEXT_BYTES + 1).read_until(b'\n', &mut bytes).map_err(unreadable)? == 0 {
            break;
        }
        let text = bounded_text(bytes, path, Some(number))?;
        let text = if number == 1 { without_mark(text) } else { text };
        if !text.trim().is_empty() {
            made.push(of(number, text.trim_end_matches(['\r', '\n']))?);
        }
    }
    Ok(made)
}

/// Bytes of a file, or of a line of it, as text.
fn bounded_text(bytes: Vec<u8>, path: &Path, line: Option<usize>) -> Result<String> {
    if bytes.len() as u64 > TEXT_BYTES {
        return Err(PlanError::TooLong { path: path.into(), line, most_bytes: TEXT_BYTES }.into());
    }
    let unreadable = |cause: io::Error| match line {
        Some(line) => io::Error::new(cause.kind(), format!("line {line}, {cause}")),
        None => cause,
    };
    Ok(utf8(bytes).map_err(|cause| PlanError::Unreadable { path: path.into(), cause: unreadable(cause) })?)
}

/// Maximum bytes of a text file in a model folder: the largest tokenizers have some 30 MB.
const MODEL_FILE_BYTES: u64 = 256 << 20;

/// The text of a file in a model folder, which is not trusted.
///
/// # Errors
/// Returns [`PlanError::Unreadable`] for a file that cannot be read, is not regular, is too long,
/// or is only a pointer to the real one.
pub(crate) fn read_of_model(path: &Path) -> Result<String> {
    let text = tributary_system::file::regular_text(path, MODEL_FILE_BYTES);
    Ok(text.map_err(|cause| PlanError::Unreadable { path: path.into(), cause })?)
}

/// A parser's complaint, with its place.
pub(crate) fn json_error(error: &serde_json::Error, path: &Path) -> Error {
    let (line, column) = (error.line(), error.column());
    let cause = error.to_string();
    let place = format!(" at line {line} column {column}");
    let cause = cause.strip_suffix(&place).unwrap_or(&cause).to_owned();
    Error::Json { path: path.into(), line, column, cause }
}

/// A string, or a number as one; other values are ignored.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<String>, D::Error> {
    Ok(match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Request> {
        Request::from_json(json, Path::new("r.json"))
    }

    #[test]
    fn documents_may_be_strings_or_objects() {
        let request = parse(
            r#"{"id": 7, "task": "hop2", "documents": ["a b", {"text": "c"}, {"title": "T", "text": "d", "x": 1}],
               "query": "q", "answer": "yes", "gold_documents": [1]}"#,
        )
        .unwrap();
        let texts: Vec<String> = request.documents.iter().map(Document::full_text).collect();
        assert_eq!(texts, ["a b", "c", "T\nd"]);
        assert_eq!(request.answer.as_deref(), Some("yes"));
    }

    #[test]
    fn optional_keys_may_be_missing_or_of_another_kind() {
        let request = parse(r#"{"documents": ["a"], "query": "q", "answer": ["x", "y"]}"#).unwrap();
        assert_eq!(request.answer, None);
    }

    #[test]
    fn empty_parts_are_refused() {
        assert!(matches!(parse(r#"{"documents": ["a"], "query": " \n"}"#), Err(Error::Plan(PlanError::EmptyQuery))));
        assert!(matches!(parse(r#"{"documents": [], "query": "q"}"#), Err(Error::Plan(PlanError::NoDocuments))));
        let request = parse(r#"{"documents": ["a", {"title": "T", "text": " "}], "query": "q"}"#).unwrap();
        assert_eq!(request.documents.len(), 2, "a document without a token is dropped where it is cut");
    }

    #[test]
    fn broken_json_says_where() {
        let error = parse("{\n\"documents\": [3],\n\"query\": \"q\"}").unwrap_err();
        assert!(matches!(error, Error::Json { line: 2, .. }), "{error:?}");
        let error = parse("{\n\"documents\": [\"a\"]\n").unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("r.json, line 3"), "{message}");
        let error = parse(r#"{"documents": ["a"]}"#).unwrap_err().to_string();
        assert!(error.contains("missing field `query`"), "{error}");
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let good = "{\"documents\": [\"a\"], \"query\": \"q\"}";
        let write = |lines: &[&str]| std::fs::write(&path, lines.join("\n")).unwrap();
        write(&[&format!("\u{feff}{good}\r"), "", good]);
        assert_eq!(Request::from_lines(&path).unwrap().len(), 2);
        write(&[good, &" ".repeat(usize::try_from(TEXT_BYTES).unwrap() - 1)]);
        assert_eq!(Request::from_lines(&path).unwrap().len(), 1);
        write(&[good, &" ".repeat(usize::try_from(TEXT_BYTES).unwrap() + 1)]);
        let error = Request::from_lines(&path).unwrap_err();
        assert_eq!(
            (error.to_string(), error.exit_code()),
            (format!("{}, line 2: more than 64 MiB; split it", path.display()), 64)
        );
        assert!(matches!(Document::corpus(&path), Err(Error::Line { line: 1, .. })));
        assert!(matches!(Request::from_file(&path), Err(Error::Plan(PlanError::TooLong { line: None, .. }))));
        assert!(matches!(Document::from_file(Path::new("/dev/zero")), Err(Error::Plan(PlanError::TooLong { .. }))));
        std::fs::write(&path, b"\n\xff\n").unwrap();
        let error = Request::from_lines(&path).unwrap_err().to_string();
        assert!(error.contains("line 2, byte 0 is not UTF-8 text"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Request::from_file(Path::new("no/such/file.json")).unwrap_err();
        assert!(error.to_string().contains("no/such/file.json"), "{error}");
        assert_eq!(error.exit_code(), 64);
    }
}
