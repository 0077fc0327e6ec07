//! The content of a message: a text, or parts of text, which are joined during reading. A list of
//! parts takes no more memory than its text, for any number of parts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::body::short;

/// Further fields of a part of a text: hints for caches, and fields of answers that are sent back.
const OF_PARTS: [&str; 3] = ["id", "annotations", "cache_control"];

/// Message about the forms of content.
const WANTED: &str = "`content` is a string or a list of parts of text";

/// The text of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Content(pub String);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Whole).map(Self)
    }
}

/// A part of a text.
struct Part(String);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(One).map(Self)
    }
}

struct Whole;

impl<'de> Visitor<'de> for Whole {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text: {WANTED}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<String, A::Error> {
        let mut whole = String::new();
        while let Some(Part(text)) = parts.next_element()? {
            whole.push_str(&text);
        }
        Ok(whole)
    }
}

struct One;

impl<'de> Visitor<'de> for One {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a part of text: {WANTED}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut part: A) -> Result<String, A::Error> {
        let (mut kind, mut text, mut unknown) = (None::<String>, None::<String>, None::<String>);
        while let Some(key) = part.next_key::<String>()? {
            let is_twice = match key.as_str() {
                "type" => kind.replace(part.next_value()?).is_some(),
                "text" => text.replace(part.next_value()?).is_some(),
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
        match (kind.as_deref(), unknown) {
            (None, _) => Err(Error::custom(WANTED)),
            (Some("text"), Some(name)) => {
                Err(Error::custom(format!("`{}` is not known in a part of `content`", short(&name))))
            }
            (Some("text"), None) => Ok(text.unwrap_or_default()),
            (Some(kind), _) => Err(Error::custom(format!("content of type `{}` is not supported", short(kind)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_text_are_joined_and_others_are_named() {
        let read = |json: &str| serde_json::from_str::<Content>(json).map_err(|error| error.to_string());
        let part = |more: &str| format!(r#"[{{"type": "text", "text": "a"{more}}}, {{"type": "text", "text": " b"}}]"#);
        assert_eq!(read(r#""a b""#), Ok(Content("a b".into())));
        assert_eq!(read(&part("")), Ok(Content("a b".into())));
        assert_eq!(read(&part(r#", "cache_control": {"type": "ephemeral"}, "id": 7"#)), Ok(Content("a b".into())));
        assert_eq!(read("[]"), Ok(Content(String::new())));
        for (json, says) in [
            (part(r#", "txet": "r""#), "`txet` is not known in a part"),
            (part(r#", "text": "r""#), "`text` of a part of `content` is there twice"),
            (r#"[{"type": "image_url", "image_url": {"url": "x"}}]"#.into(), "type `image_url` is not supported"),
            (r#"[{"text": "a"}]"#.into(), WANTED),
            (r#"["a"]"#.into(), WANTED),
            (r#"{"a": 1}"#.into(), WANTED),
            ("5".into(), WANTED),
        ] {
            let error = read(&json).expect_err(&json);
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
