//! The content of a message or a document: a text, or parts that are texts and pictures. Texts
//! beside each other are joined during reading, and pictures are decoded from base64. A list of
//! parts takes no more memory than its texts and pictures, for any number of parts.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tributary_coordinator::{Detail, PICTURES};
use tributary_pictures::{Encoded, Limits, data_url};

use crate::body::short;

/// Further fields of a part: hints for caches, and fields of answers that are sent back.
const OF_PARTS: [&str; 3] = ["id", "annotations", "cache_control"];

/// Message about the forms of content.
const WANTED: &str = "`content` is a string or a list of parts of text and pictures";

/// Message about the forms of a picture.
const PICTURE: &str = "`image_url` is an object with `url` and perhaps `detail`";

/// The content of a message or a document.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Texts and pictures in their order. No two texts stand beside each other, and none is empty.
    pub parts: Vec<Part>,
}

/// A part of a content.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// A text.
    Text(String),
    /// A picture's file, and its requested detail.
    Picture(Encoded, Detail),
}

impl Content {
    /// Whether it has pictures.
    pub fn has_pictures(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Picture(..)))
    }

    /// Its text, if it has no pictures.
    pub fn into_text(self) -> String {
        match self.parts.into_iter().next() {
            Some(Part::Text(text)) => text,
            _ => String::new(),
        }
    }

    fn push(&mut self, part: Part) {
        match (self.parts.last_mut(), part) {
            (_, Part::Text(text)) if text.is_empty() => {}
            (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
            (_, part) => self.parts.push(part),
        }
    }
}

/// The picture in a `data:` URL.
///
/// # Errors
/// Returns an error for another URL, or for base64 that is damaged or too long.
pub fn picture<E: Error>(url: &str, detail: Detail) -> Result<Part, E> {
    data_url(url, &Limits::default()).map(|encoded| Part::Picture(encoded, detail)).map_err(E::custom)
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Whole)
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(One)
    }
}

struct Whole;

impl<'de> Visitor<'de> for Whole {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text: {WANTED}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
        let mut whole = Content::default();
        whole.push(Part::Text(text.to_owned()));
        Ok(whole)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
        let (mut whole, mut pictures) = (Content::default(), 0);
        while let Some(part) = parts.next_element()? {
            pictures += usize::from(matches!(part, Part::Picture(..)));
            if pictures > PICTURES {
                return Err(Error::custom(format!("more than {PICTURES} pictures; a request has at most {PICTURES}")));
            }
            whole.push(part);
        }
        Ok(whole)
    }
}

/// Reads the list of a content alone.
pub struct Parts;

impl<'de> DeserializeSeed<'de> for Parts {
    type Value = Content;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        deserializer.deserialize_seq(Whole)
    }
}

struct One;

impl<'de> Visitor<'de> for One {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a part: {WANTED}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut part: A) -> Result<Part, A::Error> {
        let (mut kind, mut text, mut image) = (None::<String>, None::<String>, None::<Part>);
        let mut unknown = None::<String>;
        while let Some(key) = part.next_key::<String>()? {
            let is_twice = match key.as_str() {
                "type" => kind.replace(part.next_value()?).is_some(),
                "text" => text.replace(part.next_value()?).is_some(),
                "image_url" => image.replace(part.next_value_seed(ImageUrl)?).is_some(),
                name => {
                    unknown = unknown.or_else(|| (!OF_PARTS.contains(&name)).then(|| name.to_owned()));
                    part.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if is_twice {
                return Err(Error::custom(format!("the key `{key}` of a part of `content` is there twice")));
            }
        }
        let strange = |name: &str| Error::custom(format!("`{}` is not known in a part of `content`", short(name)));
        match (kind.as_deref(), unknown, text, image) {
            (None, ..) => Err(Error::custom(WANTED)),
            (Some("text" | "image_url"), Some(name), ..) => Err(strange(&name)),
            (Some("text"), None, text, None) => Ok(Part::Text(text.unwrap_or_default())),
            (Some("text"), None, _, Some(_)) => Err(strange("image_url")),
            (Some("image_url"), None, None, Some(image)) => Ok(image),
            (Some("image_url"), None, Some(_), _) => Err(strange("text")),
            (Some("image_url"), None, None, None) => Err(Error::custom(PICTURE)),
            (Some(kind), ..) => Err(Error::custom(format!("content of type `{}` is not supported", short(kind)))),
        }
    }
}

/// Reads the object of a picture.
struct ImageUrl;

impl<'de> DeserializeSeed<'de> for ImageUrl {
    type Value = Part;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Part, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ImageUrl {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PICTURE)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
        let (mut url, mut detail) = (None::<String>, None::<Option<String>>);
        while let Some(key) = map.next_key::<String>()? {
            let is_twice = match key.as_str() {
                "url" => url.replace(map.next_value()?).is_some(),
                "detail" => detail.replace(map.next_value()?).is_some(),
                name => return Err(Error::custom(format!("`{}` is not known in `image_url`", short(name)))),
            };
            if is_twice {
                return Err(Error::custom(format!("the key `{key}` of `image_url` is there twice")));
            }
        }
        let detail = Detail::named(detail.flatten().as_deref()).map_err(Error::custom)?;
        picture(&url.ok_or_else(|| Error::custom(PICTURE))?, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_text_are_joined_and_others_are_named() {
        let read = |json: &str| match serde_json::from_str::<Content>(json) {
            Ok(content) if content.parts.len() < 2 => Ok(content.into_text()),
            Ok(content) => Err(format!("{content:?}")),
            Err(error) => Err(error.to_string()),
        };
        let part = |more: &str| format!(r#"[{{"type": "text", "text": "a"{more}}}, {{"type": "text", "text": " b"}}]"#);
        assert_eq!(read(r#""a b""#), Ok("a b".to_owned()));
        assert_eq!(read(&part("")), Ok("a b".to_owned()));
        assert_eq!(read(&part(r#", "cache_control": {"type": "ephemeral"}, "id": 7"#)), Ok("a b".to_owned()));
        assert_eq!(read("[]"), Ok(String::new()));
        for (json, says) in [
            (part(r#", "txet": "r""#), "`txet` is not known in a part"),
            (part(r#", "text": "r""#), "`text` of a part of `content` is there twice"),
            (r#"[{"type": "video_url", "video_url": {"url": "x"}}]"#.into(), "type `video_url` is not supported"),
            (
                r#"[{"type": "image_url", "text": "a", "image_url": {"url": "data:;base64,"}}]"#.into(),
                "`text` is not known",
            ),
            (part(r#", "image_url": {"url": "data:;base64,"}"#), "`image_url` is not known in a part"),
            (r#"[{"text": "a"}]"#.into(), WANTED),
            (r#"["a"]"#.into(), WANTED),
            (r#"{"a": 1}"#.into(), WANTED),
            ("5".into(), WANTED),
        ] {
            let error = read(&json).expect_err(&json);
            assert!(error.contains(says), "{json}: {error}");
        }
    }
    #[test]
    fn pictures_stand_between_texts_and_are_never_fetched() {
        let part = |json: &str| {
            serde_json::from_str::<Content>(&format!(
                r#"[{{"type": "text", "text": "a"}}, {json},
            {{"type": "text", "text": ""}}, {json}]"#
            ))
            .map_err(|error| error.to_string())
        };
        let image =
            |url: &str, more: &str| format!(r#"{{"type": "image_url", "image_url": {{"url": "{url}"{more}}}}}"#);
        let Content { parts } = part(&image("data:image/png;base64,QUJD", r#", "detail": "low""#)).expect("parts");
        let file = Encoded { declared: Some("image/png".into()), file: b"ABC".to_vec() };
        assert_eq!(parts.len(), 3, "an empty text is none");
        assert_eq!(parts[1], Part::Picture(file, Detail::Low));
        for null in ["", r#", "detail": null"#, r#", "detail": "auto""#, r#", "detail": "high""#] {
            let content = part(&image("data:;base64,QUJD", null)).expect(null);
            assert!(matches!(content.parts[1], Part::Picture(_, Detail::Full)), "{null}");
        }
        for (json, says) in [
            (image("http://a/b.png", ""), "pictures are not fetched: send a data: URL"),
            (image("https://a/b.png", ""), "pictures are not fetched: send a data: URL"),
            (image("file:///etc/passwd", ""), "pictures are not fetched: send a data: URL"),
            (image("/etc/passwd", ""), "pictures are not fetched: send a data: URL"),
            (image("data:image/png,abc", ""), "a picture's data: URL begins"),
            (image("data:image/png;base64,QUJ", ""), "does not end as base64 does"),
            (image("data:image/png;base64,QU D", ""), "0x20 at place 2"),
            (image("data:;base64,QUJD", r#", "detail": "x""#), "auto, high or low"),
            (image("data:;base64,QUJD", r#", "size": 3"#), "`size` is not known in `image_url`"),
            (image("data:;base64,QUJD", r#", "url": "data:""#), "`url` of `image_url` is there twice"),
            (r#"{"type": "image_url"}"#.to_owned(), PICTURE),
            (r#"{"type": "image_url", "image_url": "data:;base64,QUJD"}"#.to_owned(), PICTURE),
            (r#"{"type": "image_url", "image_url": {}}"#.to_owned(), PICTURE),
        ] {
            let error = part(&json).expect_err(&json);
            assert!(error.contains(says), "{json}: {error}");
        }
        let many = vec![image("data:;base64,QUJD", ""); PICTURES + 1].join(",");
        let error = serde_json::from_str::<Content>(&format!("[{many}]")).expect_err("too many");
        assert!(error.to_string().contains("at most 256"), "{error}");
    }
}
