//! The documents of a body, in the forms that clients and frameworks have for them: a text,
//! `{"text", "title"}`, Cohere's `{"id", "data": {"text", "title"}}` and LangChain's
//! `{"page_content", "metadata"}`; with pictures `{"image", "title"}`, or `{"content", "title"}`
//! whose content is a message's.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tributary_coordinator::{Detail, Document, DocumentPart, PictureFile, picture_name};

use super::content::{Content, Part, Parts, picture};
use super::{Terms, pictures};
use crate::body::{Fields, short};
use crate::error::ApiError;

/// Keys of a document that are taken and say nothing to the model.
const UNREAD: [&str; 6] = ["id", "metadata", "score", "type", "url", "source"];

/// Documents of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Documents {
    /// Those that have a text or a picture, in their order.
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

/// Takes the documents of a body; none where there are none.
///
/// # Errors
/// Returns an error if documents have another form, if there are more than allowed, if a key is
/// unknown and unknown keys are not ignored, or if pictures cannot be read.
pub fn take(fields: &mut Fields, terms: &Terms<'_>) -> Result<Documents, ApiError> {
    let (most, ignores_unknown) = (terms.limits.documents, terms.ignores_unknown);
    let all = fields.take_by("documents", Reader { most, ignores_unknown })?.unwrap_or_default();
    let read = all.len();
    let all: Vec<Document> = all.into_iter().filter(has_content).collect();
    pictures::check(&all, "documents", terms)?;
    Ok(Documents { empty: read - all.len(), all })
}

fn has_content(document: &Document) -> bool {
    !(document.text.is_empty() && document.pictures.is_empty())
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
        let (mut documents, ignores_unknown) = (Vec::new(), self.ignores_unknown);
        while let Some(document) = list.next_element_seed(One { ignores_unknown, number: documents.len() + 1 })? {
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
    /// Its number among the documents, from 1.
    number: usize,
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
        Ok(Document::of_text(text))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Document, E> {
        Ok(Document::of_text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let (mut title, mut body) = (None::<String>, None::<Body>);
        let mut seen: Vec<String> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(Error::custom(format!("the key `{}` of a document is there twice", short(&key))));
            }
            let several = || {
                Error::custom(
                    "a document has its text once: in `text`, `page_content`, `data`, or with pictures in `image` or `content`",
                )
            };
            match key.as_str() {
                "title" => title = map.next_value()?,
                "text" | "page_content" | "snippet" | "image" | "content" | "data" => {
                    let read = match key.as_str() {
                        "image" => {
                            Body::Parts(Content { parts: vec![picture(&map.next_value::<String>()?, Detail::Full)?] })
                        }
                        "content" => Body::Parts(map.next_value_seed(Parts)?),
                        "data" => Body::Whole(map.next_value_seed(self)?),
                        _ => Body::Whole(Document::of_text(map.next_value::<String>()?)),
                    };
                    if body.replace(read).is_some() {
                        return Err(several());
                    }
                }
                known if UNREAD.contains(&known) || self.ignores_unknown => {
                    map.next_value::<IgnoredAny>()?;
                }
                other => {
                    let other = short(other);
                    return Err(Error::custom(format!(
                        "`{other}` of a document is not known; it has `title` and `text`, `image` or `content`"
                    )));
                }
            }
            seen.push(key);
        }
        match body {
            None => Err(Error::custom("a document has no `text`")),
            Some(Body::Whole(inner)) => Ok(Document { title: title.or(inner.title.clone()), ..inner }),
            Some(Body::Parts(content)) => self.with_pictures(title, content).map_err(Error::custom),
        }
    }
}

/// What a document says.
enum Body {
    /// A text, or a document within the document.
    Whole(Document),
    /// Texts and pictures.
    Parts(Content),
}

impl One {
    fn with_pictures(self, title: Option<String>, content: Content) -> tributary_coordinator::Result<Document> {
        let count = content.parts.iter().filter(|part| matches!(part, Part::Picture(..))).count();
        let (mut picture, number) = (0, self.number);
        let mut read = |part| match part {
            Part::Text(text) => Ok(DocumentPart::Text(text)),
            Part::Picture(encoded, detail) => {
                picture += 1;
                let name = picture_name(&format!("document {number}"), picture, count);
                Ok(DocumentPart::Picture(Arc::new(PictureFile::new(name, encoded, detail)?)))
            }
        };
        let parts = content.parts.into_iter().map(&mut read).collect::<tributary_coordinator::Result<Vec<_>>>()?;
        Ok(Document::of_parts(title, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::super::kit;
    use super::*;
    use crate::limits::ClientLimits;

    fn read(json: &str, ignores_unknown: bool) -> Result<Documents, ApiError> {
        let body = format!("{{\"documents\": {json}}}");
        let mut fields = Fields::from_json(body.as_bytes()).expect("an object");
        kit::with_terms(|terms| {
            let limits = ClientLimits { documents: 4, ..*terms.limits };
            take(&mut fields, &Terms { limits: &limits, ignores_unknown, ..terms.clone() })
        })
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
    #[test]
    fn documents_may_have_pictures() {
        let url = kit::data_url("d");
        let of = |json: &str, read: &dyn Fn(&mut Fields) -> Result<Documents, ApiError>| {
            read(&mut Fields::from_json(format!("{{\"documents\": {json}}}").as_bytes()).expect("an object"))
        };
        let with = |json: &str| of(json, &|fields| kit::with_pictures(|terms| take(fields, terms)));
        let image = format!(r#"{{"type": "image_url", "image_url": {{"url": "{url}"}}}}"#);
        let json = format!(
            r#"["", {{"image": "{url}", "title": "T"}}, {{"content": [{{"type": "text", "text": "ab"}}, {image}, {image}]}},
               {{"data": {{"image": "{url}", "title": "U"}}}}]"#
        );
        let Documents { all, empty } = with(&json).expect("documents");
        let read: Vec<_> =
            all.iter().map(|document| (document.title.as_deref(), &*document.text, document.pictures.len())).collect();
        assert_eq!((read, empty), (vec![(Some("T"), "", 1), (None, "ab", 2), (Some("U"), "", 1)], 1));
        assert_eq!(all[1].pictures[1].at, 2);
        assert!(pictures::peak_bytes(&all) > 0 && pictures::peak_bytes(&[]) == 0);
        let huge = "iVBORw0KGgoAAAANSUhEUgAAw1AAAMNQCAIAAAA";
        for (json, wanted) in [
            (r#"[{"image": "http://a/b.png"}]"#.to_owned(), "pictures are not fetched: send a data: URL"),
            (r#"[{"image": "d.png"}]"#.to_owned(), "pictures are not fetched: send a data: URL"),
            (r#"["a", {"image": "data:;base64,QUJD"}]"#.to_owned(), "document 2: the file is no PNG"),
            (format!(r#"[{{"image": "data:;base64,{huge}="}}]"#), "document 1: "),
            (format!(r#"[{{"image": "{url}", "text": "a"}}]"#), "its text once"),
            (format!(r#"[{{"image": "{}"}}]"#, url.replace("png", "gif")), "declared as `image/gif`"),
            (format!(r#"[{{"content": [{}]}}]"#, vec![image.as_str(); 257].join(",")), "at most 256"),
            (
                format!(
                    "[{}]",
                    vec![format!(r#"{{"content": [{}]}}"#, vec![image.as_str(); 65].join(",")); 4].join(",")
                ),
                "260 pictures",
            ),
        ] {
            let error = with(&json).expect_err(wanted);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("documents")), "{wanted}");
            assert!(error.message.contains(wanted), "{wanted}: {}", error.message);
        }
        let plain = |fields: &mut Fields| kit::with_terms(|terms| take(fields, terms));
        let error = of(&format!(r#"[{{"image": "{url}"}}]"#), &plain).expect_err("a model of texts");
        assert_eq!(error.message, "model demo reads no pictures");
        let few = |fields: &mut Fields| {
            kit::with_pictures(|terms| {
                let limits = ClientLimits { prompt_tokens: 11, ..*terms.limits };
                take(fields, &Terms { limits: &limits, ..terms.clone() })
            })
        };
        let error = of(&json, &few).expect_err("tokens");
        assert!(error.message.contains("24 tokens of pictures; this service takes at most 11"), "{}", error.message);
    }
}
