//! The forms that a document has in a JSON file: a text, or an object with a text, a picture, or a
//! list of both. Sources of pictures stay as they are written; nothing is opened here.

use serde::Deserialize;

use crate::picture::Detail;

/// The forms, for messages.
const WANTED: &str = "a document is a string or {\"title\": .., \"text\": ..}, with `image` or `content` for pictures";

/// A document as it is written.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct DocumentForm {
    /// Its title, if it has one.
    pub title: Option<String>,
    /// Its texts and pictures, in their order.
    pub parts: Vec<PartForm>,
}

/// A part of a document.
#[derive(Debug)]
pub(crate) enum PartForm {
    /// A text.
    Text(String),
    /// A picture.
    Picture {
        /// A `data:` URL, or the path of a file.
        source: String,
        /// Requested detail.
        detail: Detail,
    },
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a document is a string or {\"title\": .., \"text\": ..}")]
enum Written {
    Bare(String),
    Object { title: Option<String>, text: Option<String>, image: Option<String>, content: Option<Vec<WrittenPart>> },
}

#[derive(Deserialize)]
struct WrittenPart {
    r#type: String,
    text: Option<String>,
    image_url: Option<ImageUrl>,
}

#[derive(Deserialize)]
struct ImageUrl {
    url: String,
    detail: Option<String>,
}

impl TryFrom<Written> for DocumentForm {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let (title, parts) = match written {
            Written::Bare(text) => (None, vec![PartForm::Text(text)]),
            Written::Object { title, text, image, content } => {
                let picture = |source| PartForm::Picture { source, detail: Detail::Full };
                let parts = match (text, image, content) {
                    (Some(text), None, None) => vec![PartForm::Text(text)],
                    (None, Some(source), None) => vec![picture(source)],
                    (None, None, Some(parts)) => parts.into_iter().map(PartForm::of).collect::<Result<_, _>>()?,
                    (None, None, None) => return Err(WANTED.to_owned()),
                    _ => return Err("a document has one of `text`, `image` and `content`".to_owned()),
                };
                (title, parts)
            }
        };
        Ok(Self { title, parts })
    }
}

impl PartForm {
    fn of(part: WrittenPart) -> Result<Self, String> {
        match (part.r#type.as_str(), part.text, part.image_url) {
            ("text", Some(text), None) => Ok(Self::Text(text)),
            ("image_url", None, Some(ImageUrl { url, detail })) => {
                Ok(Self::Picture { source: url, detail: Detail::named(detail.as_deref())? })
            }
            ("text" | "image_url", ..) => {
                Err("a part of `content` has a `text`, or an `image_url` with its `url`, as its `type` says".to_owned())
            }
            (other, ..) => {
                let other: String = other.chars().take(64).collect();
                Err(format!("content of type `{}` is not supported", other.escape_debug()))
            }
        }
    }
}
