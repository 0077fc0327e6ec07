//! The documents of a body, in the forms that clients and frameworks have for them: a text,
//! `{"text", "title"}`, Cohere's `{"id", "data": {"text",
//! "title"}}` and LangChain's `{"page_content", "metadata"}`.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tributary_coordinator::Document;

use crate::body::{Fields, short};
use crate::error::ApiError;

/// Keys of a document that are taken and say nothing to the model.
const UNREAD: [&str; 6] = ["id", "metadata", "score", "type", "url", "source"];

/// Documents of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Documents {
    /// Those that have a text, in their order.
    pub all: Vec<Document>,
    /// Number of those that have none and are left out.
    pub empty: usize,
}

/// Reader of documents.
#[derive(Debug, Clone, Copy)]
struct Reader {
    /// Maximum number of documents.
    most: usize,
    /// Whether keys that are not known pass.
    ignores_unknown: bool,
}

/// Takes the documents of a body, at most `most`; none where there are none.
///
/// # Errors
/// Returns an error if documents have another form, if there are more than allowed, or if a key is
/// unknown and unknown keys are not ignored.
pub fn take(fields: &mut Fields, most: usize, ignores_unknown: bool) -> Result<Documents, ApiError> {
    let all = fields.take_by("documents", Reader { most, ignores_unknown })?.unwrap_or_default();
    let read = all.len();
    let all: Vec<Document> = all.into_iter().filter(|document| !document.text.is_empty()).collect();
    Ok(Documents { empty: read - all.len(), all })
}

impl<'de> DeserializeSeed<'de> for Reader {
    type Value = Vec<Document>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Reader {
    type Value = Vec<Document>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of documents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut documents = Vec::new();
        while let Some(document) = list.next_element_seed(One { ignores_unknown: self.ignores_unknown })? {
            if documents.len() == self.most {
                let most = self.most;
                return Err(Error::custom(format!("more than {most} documents; this service takes at most {most}")));
            }
            documents.push(document);
        }
        Ok(documents)
    }
}

/// Reads one document.
#[derive(Clone, Copy)]
struct One {
    ignores_unknown: bool,
}

impl<'de> DeserializeSeed<'de> for One {
    type Value = Document;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Document, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for One {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a document: a string or {\"title\": .., \"text\": ..}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Document, E> {
        Ok(Document { title: None, text: text.to_owned() })
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Document, E> {
        Ok(Document { title: None, text })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let (mut title, mut text) = (None::<String>, None::<String>);
        let mut seen: Vec<String> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(Error::custom(format!("the key `{}` of a document is there twice", short(&key))));
            }
            let several = || Error::custom("a document has its text once: in `text`, `page_content` or `data`");
            match key.as_str() {
                "title" => title = map.next_value()?,
                "text" | "page_content" | "snippet" => {
                    if text.replace(map.next_value()?).is_some() {
                        return Err(several());
                    }
                }
                "data" => {
                    let inner = map.next_value_seed(self)?;
                    if text.replace(inner.text).is_some() {
                        return Err(several());
                    }
                    title = title.or(inner.title);
                }
                known if UNREAD.contains(&known) || self.ignores_unknown => {
                    map.next_value::<IgnoredAny>()?;
                }
                other => {
                    let other = short(other);
                    return Err(Error::custom(format!(
                        "`{other}` of a document is not known; it has `text` and `title`"
                    )));
                }
            }
            seen.push(key);
        }
        let text = text.ok_or_else(|| Error::custom("a document has no `text`"))?;
        Ok(Document { title, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, ignores_unknown: bool) -> Result<Documents, ApiError> {
        let body = format!("{{\"documents\": {json}}}");
        take(&mut Fields::from_json(body.as_bytes()).expect("an object"), 4, ignores_unknown)
    }

    #[test]
    fn the_forms_of_frameworks_are_read() {
        let json = r#"["a", {"text": "b", "title": "T"}, {"id": "1", "data": {"text": "c", "title": "U"}},
            {"page_content": "d", "metadata": {"source": "x", "page": 3}}]"#;
        let documents = read(json, false).expect("documents").all;
        let texts: Vec<_> = documents.iter().map(|document| (document.title.as_deref(), &*document.text)).collect();
        assert_eq!(texts, [(None, "a"), (Some("T"), "b"), (Some("U"), "c"), (None, "d")]);
        assert_eq!(read(r#"[{"id": 7, "data": "e"}]"#, false).expect("one").all[0].text, "e");
        assert_eq!(read("null", false), Ok(Documents::default()));
    }

    #[test]
    fn empty_documents_are_left_out_and_counted() {
        let documents = read(r#"["", "a", {"text": ""}, " "]"#, false).expect("documents");
        assert_eq!((documents.all.len(), documents.empty), (2, 2), "space is a text");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (json, wanted) in [
            (r#"[{"text": "a", "tittle": "b"}]"#, "`tittle`"),
            (r#"[{"text": "a", "text": "b"}]"#, "`text` of a document is there twice"),
            (r#"[{"data": {"text": "a", "tetx": "b"}}]"#, "`tetx`"),
            (r#"[{"title": "a"}]"#, "no `text`"),
            (r#"[{"text": "a", "page_content": "b"}]"#, "its text once"),
            (r#"["a", "b", "c", "d", "e"]"#, "takes at most 4"),
            ("[5]", "a string or"),
            (r#""a""#, "a list of documents"),
        ] {
            let error = read(json, false).expect_err(json);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("documents")), "{json}");
            assert!(error.message.contains(wanted), "{json}: {}", error.message);
        }
        assert!(read(r#"[{"text": "a", "tittle": "b"}]"#, true).is_ok(), "where unknown keys pass");
        assert!(read(r#"[{"text": "a", "text": "b"}]"#, true).is_err(), "not what is there twice");
    }
}
