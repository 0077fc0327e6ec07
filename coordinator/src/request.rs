//! A user's request: documents and a question. Independent of tokens.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tributary_pictures::{Encoded, Error as PictureError, Kind};
use tributary_system::file::{utf8, without_mark};

use crate::document_form::{DocumentForm, PartForm};
use crate::error::PlanError;
use crate::picture::{Detail, PictureFile, picture_name};
use crate::{Error, Result};

/// Documents and a question about them.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The context, in its order.
    pub documents: Vec<Document>,
    /// The question.
    pub query: String,
    /// The right answer, if known.
    pub answer: Option<String>,
}

/// A request as a file has it.
#[derive(Deserialize)]
struct RequestForm {
    documents: Vec<DocumentForm>,
    query: String,
    #[serde(default, deserialize_with = "text_or_number")]
    answer: Option<String>,
}

/// One document: a text, perhaps with pictures in it. In JSON a string, or an object with perhaps a
/// `title` and one of `text`, `image` and `content`, a list of texts and pictures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    /// Title, placed before the text on a line of its own.
    pub title: Option<String>,
    /// Text of the document.
    pub text: String,
    /// Its pictures, in their order.
    pub pictures: Vec<PlacedPicture>,
    /// Whether its text goes on after its end, so that nothing is joined to it.
    pub goes_on: bool,
}

/// A picture in a document.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedPicture {
    /// Bytes of the document's text before it.
    pub at: usize,
    /// The picture's file.
    pub file: Arc<PictureFile>,
}

/// A part of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum DocumentPart {
    /// A text.
    Text(String),
    /// A picture.
    Picture(Arc<PictureFile>),
}

impl Document {
    /// A text without a title.
    pub fn of_text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A document of texts and pictures.
    pub fn of_parts(title: Option<String>, parts: impl IntoIterator<Item = DocumentPart>) -> Self {
        let mut document = Self { title, ..Self::default() };
        for part in parts {
            match part {
                DocumentPart::Text(text) => document.text.push_str(&text),
                DocumentPart::Picture(file) => {
                    document.pictures.push(PlacedPicture { at: document.text.len(), file });
                }
            }
        }
        document
    }

    /// A document without a title, read from a text file or a picture's. The file's first bytes
    /// decide which it is.
    ///
    /// # Errors
    /// Returns [`PlanError::Unreadable`], [`PlanError::TooLong`], or [`Error::Picture`].
    pub fn from_file(path: &Path) -> Result<Self> {
        let bytes = read_bytes(path)?;
        let picture = |file| {
            let name = path.display().to_string();
            PictureFile::new(name, Encoded { declared: None, file }, Detail::Full)
        };
        match Kind::of(&bytes) {
            Ok(_) => Ok(Self::of_parts(None, [DocumentPart::Picture(Arc::new(picture(bytes)?))])),
            // A text may begin as another kind of picture does: `BM` of BMP, or `<?xml`.
            Err(PictureError::Refused { kind }) if std::str::from_utf8(&bytes).is_err() => {
                let name = path.display().to_string();
                Err(Error::Picture { name, cause: PictureError::Refused { kind } })
            }
            Err(_) => Ok(Self::of_text(without_mark(bounded_text(bytes, path, None)?))),
        }
    }

    /// A document of a file in `folder`; it has a number among others there.
    fn of_form(form: DocumentForm, number: usize, folder: &Path) -> Result<Self> {
        let DocumentForm { title, parts } = form;
        let pictures = parts.iter().filter(|part| matches!(part, PartForm::Picture { .. })).count();
        let mut picture = 0;
        let mut read = |part| match part {
            PartForm::Text(text) => Ok(DocumentPart::Text(text)),
            PartForm::Picture { source, detail } => {
                picture += 1;
                let name = picture_name(&format!("document {number}"), picture, pictures);
                let file = match has_scheme(&source) {
                    true => PictureFile::from_url(name, &source, detail)?,
                    false => PictureFile::from_path(name, &folder.join(source), detail)?,
                };
                Ok(DocumentPart::Picture(Arc::new(file)))
            }
        };
        let parts = parts.into_iter().map(&mut read).collect::<Result<Vec<_>>>()?;
        Ok(Self::of_parts(title, parts))
    }

    /// Its texts and pictures in their order, the title before them. No text is empty.
    pub fn parts(&self) -> Vec<DocumentPart> {
        let text = self.full_text();
        let before = text.len() - self.text.len();
        let (mut parts, mut from) = (Vec::new(), 0);
        let push = |part: &str| (!part.is_empty()).then(|| DocumentPart::Text(part.to_owned()));
        for PlacedPicture { at, file } in &self.pictures {
            parts.extend(push(&text[from..before + at]));
            parts.push(DocumentPart::Picture(Arc::clone(file)));
            from = before + at;
        }
        parts.extend(push(&text[from..]));
        parts
    }

    /// The documents of a folder, a text or a picture each, in the order of their names; or of a
    /// file of JSON, one a line, as in a request.
    ///
    /// # Errors
    /// Returns [`PlanError::Unreadable`], [`PlanError::TooLong`], [`PlanError::NoDocuments`],
    /// [`Error::Picture`], or [`Error::Line`] with the number of an invalid line.
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
            let form = serde_json::from_str(text).map_err(|error| json_error(&error, path));
            let document = form.and_then(|form| Self::of_form(form, line, folder_of(path)));
            document.map_err(|cause| Error::Line { path: path.into(), line, cause: Box::new(cause) })
        })
    }

    /// Title and text, as the model reads them, without pictures.
    pub fn full_text(&self) -> String {
        match &self.title {
            Some(title) if !title.is_empty() => format!("{title}\n{}", self.text),
            _ => self.text.clone(),
        }
    }
}

impl Request {
    /// Whether some of its documents have pictures.
    pub fn has_pictures(&self) -> bool {
        self.documents.iter().any(|document| !document.pictures.is_empty())
    }

    /// The same request, whose pictures are not decoded yet.
    #[must_use]
    pub fn undecoded(&self) -> Self {
        let mut this = self.clone();
        for picture in this.documents.iter_mut().flat_map(|document| &mut document.pictures) {
            picture.file = Arc::new(picture.file.undecoded());
        }
        this
    }

    /// A request from its parts.
    ///
    /// # Errors
    /// Returns [`PlanError::EmptyQuery`] or [`PlanError::NoDocuments`].
    pub fn new(documents: Vec<Document>, query: String) -> Result<Self> {
        Self { documents, query, answer: None }.checked()
    }

    /// A request from a JSON file. Unknown keys are ignored, and paths of pictures are relative to
    /// the file.
    ///
    /// # Errors
    /// Returns [`PlanError::Unreadable`], [`PlanError::TooLong`], [`Error::Json`],
    /// [`Error::Picture`], and the errors of [`new`](Self::new).
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_json(&read(path)?, path)
    }

    /// A request from the JSON text of the file at `path`.
    ///
    /// # Errors
    /// Returns [`Error::Json`], [`Error::Picture`], and the errors of [`new`](Self::new).
    pub fn from_json(json: &str, path: &Path) -> Result<Self> {
        let form: RequestForm = serde_json::from_str(json).map_err(|error| json_error(&error, path))?;
        let RequestForm { documents, query, answer } = form;
        let read = |(index, form)| Document::of_form(form, index + 1, folder_of(path));
        let documents = documents.into_iter().enumerate().map(read).collect::<Result<_>>()?;
        Self { documents, query, answer }.checked()
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
fn read(path: &Path) -> Result<String> {
    Ok(without_mark(bounded_text(read_bytes(path)?, path, None)?))
}

/// The bytes of a user's own file, or pipe, up to one more than a text may have.
fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let unreadable = |cause| PlanError::Unreadable { path: path.into(), cause };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(TEXT_BYTES + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(bytes)
}

/// The folder that paths in a file are relative to.
fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Whether a text begins with a URL's scheme, such as `data:`. A single letter is none.
fn has_scheme(text: &str) -> bool {
    let letters = |scheme: &str| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    text.split_once(':').is_some_and(|(scheme, _)| scheme.len() > 1 && letters(scheme))
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
    use base64::Engine;

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
    fn documents_may_have_pictures() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/vlm");
        let read = |documents: &str| {
            let json = format!(r#"{{"documents": [{documents}], "query": "q"}}"#);
            Request::from_json(&json, &golden.join("request.json")).map(|request| request.documents)
        };
        let url = |file: &str| {
            let bytes = std::fs::read(golden.join(file)).unwrap();
            format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes))
        };
        let documents = read(&format!(
            r#"{{"title": "T", "image": "d.png"}}, {{"image": "{}"}}, {{"content": [{{"type": "text", "text": "ab"}},
               {{"type": "image_url", "image_url": {{"url": "./f.png", "detail": "low"}}}}, {{"type": "text", "text": "c"}}]}}"#,
            url("d.png")
        ))
        .unwrap();
        let places = |document: &Document| document.pictures.iter().map(|picture| picture.at).collect::<Vec<_>>();
        assert_eq!(documents.iter().map(places).collect::<Vec<_>>(), [vec![0], vec![0], vec![2]]);
        assert_eq!((documents[2].text.as_str(), documents[0].title.as_deref()), ("abc", Some("T")));
        assert_eq!(documents[0].parts().len(), 2, "title and picture");
        let low = &documents[2].pictures[0].file;
        assert_eq!(**low, PictureFile::from_path("f", &golden.join("f.png"), Detail::Low).unwrap());
        let of_file = Document::from_file(&golden.join("d.png")).unwrap();
        assert_eq!(of_file.pictures[0].at, 0);
        let content = |part: &str| format!(r#"{{"content": [{part}]}}"#);
        for (document, wanted) in [
            (r#"{"image": "http://a/b.png"}"#.to_owned(), "document 1: pictures are not fetched: send a data: URL"),
            (r#"{"image": "file:///etc/passwd"}"#.to_owned(), "pictures are not fetched"),
            (r#"{"image": "data:image/png,x"}"#.to_owned(), "document 1: a picture's data: URL begins"),
            (r#"{"image": "data:image/png;base64,QUJD"}"#.to_owned(), "no PNG, JPEG or WebP picture"),
            (r#"{"image": "none.png"}"#.to_owned(), "none.png"),
            (r#"{"image": "extract.py"}"#.to_owned(), "document 1: the file is no PNG"),
            (r#"{"text": "a", "image": "d.png"}"#.to_owned(), "one of `text`, `image` and `content`"),
            (r#"{"title": "a"}"#.to_owned(), "a document is a string or"),
            (content(r#"{"type": "video_url", "video_url": {"url": "x"}}"#), "content of type `video_url`"),
            (content(r#"{"type": "image_url", "image_url": {"url": "d.png", "detail": "x"}}"#), "auto, high or low"),
            (content(r#"{"type": "text"}"#), "as its `type` says"),
            (
                format!(r#""a", {{"content": [{0}, {0}]}}"#, r#"{"type": "image_url", "image_url": {"url": "x:y"}}"#)
                    .replace("x:y", "data:;base64,"),
                "picture 1 of document 2: the picture has 0 bytes",
            ),
        ] {
            let error = read(&document).expect_err(&document);
            assert!(error.to_string().contains(wanted) && error.exit_code() == 64, "{document}: {error}");
        }
    }

    #[test]
    fn files_are_pictures_by_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            Document::from_file(&path)
        };
        assert_eq!(file("a.png", b"BMW and <?xml").unwrap(), Document::of_text("BMW and <?xml"));
        assert_eq!(file("b", b"<?xml version='1.0'?>").unwrap().pictures, []);
        let refused = |bytes: &[u8]| file("c", bytes).expect_err("refused").to_string();
        assert!(refused(b"GIF89a\xff\xfe").contains("GIF is not read: send PNG, JPEG or WebP"));
        assert!(refused(b"ab\xff").contains("is not UTF-8 text"));
        assert!(refused(b"\x89PNG\r\n\x1a\n").contains("c: the PNG picture"));
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
