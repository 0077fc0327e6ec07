//! The body of a request: a JSON object whose fields are read one by one, so that every error has
//! its parameter's name.
//!
//! A field is kept as text until it is taken: an unread field is never parsed, however large it is.

use std::collections::BTreeMap;
use std::fmt;

use axum::http::{HeaderMap, header};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Fields of a body that have not been taken yet.
pub struct Fields(BTreeMap<String, Box<RawValue>>);

/// Fields of one body at most: no client has as many to say.
const FIELDS: usize = 256;

impl<'de> serde::Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader)
    }
}

/// Reads an object whose names differ.
struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
            if fields.contains_key(&name) {
                return Err(serde::de::Error::custom(format!("the field `{}` is there twice", short(&name))));
            }
            if fields.len() == FIELDS {
                return Err(serde::de::Error::custom(format!("it has more than {FIELDS} fields")));
            }
            fields.insert(name, value);
        }
        Ok(Fields(fields))
    }
}

/// Bytes of a value that is no text of a prompt: in memory an object is some thirty times as large
/// as its JSON.
const VALUE_BYTES: usize = 1 << 20;

/// The values of an object whose names differ, and its field `apart` as that type, if it is there
/// and not null.
///
/// # Errors
/// Returns what the value is instead, in one line.
pub fn object<T: DeserializeOwned>(text: &RawValue, apart: &str) -> Result<(Map<String, Value>, Option<T>), String> {
    let told = |error: serde_json::Error| shortened(error.to_string().split(" at line ").next().unwrap_or_default());
    let Fields(mut fields) = serde_json::from_str(text.get()).map_err(told)?;
    let value = fields.remove(apart).map(|value| serde_json::from_str(value.get())).transpose().map_err(told)?;
    let whole = |(name, value): (String, Box<RawValue>)| match value.get().len() {
        0..=VALUE_BYTES => Ok((name, serde_json::from_str(value.get()).map_err(told)?)),
        bytes => Err(too_long(&name, bytes)),
    };
    Ok((fields.into_iter().map(whole).collect::<Result<_, _>>()?, value.flatten()))
}

fn too_long(name: &str, bytes: usize) -> String {
    format!("`{}` has {bytes} bytes; at most {VALUE_BYTES}", short(name))
}

/// A name or value from outside as a message repeats it: the beginning of a long one.
pub fn short(text: &str) -> String {
    const CHARACTERS: usize = 64;
    match text.char_indices().nth(CHARACTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}..", &text[..end]),
    }
}

/// Edits (insert, delete, replace a letter, swap two neighbours) that make one word of the other,
/// if they are at most two.
fn is_near(word: &str, meant: &str) -> bool {
    let word = word.to_ascii_lowercase();
    if word == meant || (word.len() >= 3 && meant.starts_with(&word)) || word.trim_end_matches('s') == "doc" {
        return true;
    }
    // Names are short, and each is held against a few words.
    word.len() <= meant.len() + 2 && strsim::osa_distance(&word, meant) <= 2
}

/// Whether a body says that it is JSON. A web page cannot set this type on requests to other
/// origins without a preflight.
pub fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

impl Fields {
    /// The fields of a JSON object.
    ///
    /// # Errors
    /// Returns an error if the bytes are no JSON object.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        let fields = serde_json::from_slice(bytes);
        fields.map_err(|error: serde_json::Error| {
            ApiError::invalid(format!("the body is not a JSON object: {}", shortened(&error.to_string())))
        })
    }

    /// Takes a field that is no text of a prompt; none if it is absent or null.
    ///
    /// # Errors
    /// Returns the field's name if the value is of another kind or has more than [`VALUE_BYTES`].
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.length(name) {
            0..=VALUE_BYTES => self.take_long(name),
            bytes => Err(ApiError::parameter(name, too_long(name, bytes))),
        }
    }

    /// The same of a field that may be as long as the body.
    ///
    /// # Errors
    /// Returns the field's name if the value is of another kind.
    pub fn take_long<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.0.remove(name) else { return Ok(None) };
        serde_json::from_str(text.get()).map_err(|error| wrong(name, &error))
    }

    /// Takes a field by a reader of its type; none if it is absent or null.
    ///
    /// # Errors
    /// Fails as [`take`](Self::take) does.
    pub fn take_by<S: for<'de> DeserializeSeed<'de, Value = T>, T>(
        &mut self,
        name: &str,
        reader: S,
    ) -> Result<Option<T>, ApiError> {
        let Some(text) = self.0.remove(name).filter(|text| text.get() != "null") else { return Ok(None) };
        let mut json = serde_json::Deserializer::from_str(text.get());
        let read = reader.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
        read.map(Some).map_err(|error| wrong(name, &error))
    }

    /// Bytes of a field as it was sent; 0 if it is absent.
    pub fn length(&self, name: &str) -> usize {
        self.0.get(name).map_or(0, |text| text.get().len())
    }

    /// Drops a field that is not read.
    pub fn pass_over(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Takes a whole number from `least` to `most`.
    ///
    /// # Errors
    /// Returns an error if the value is of another kind.
    pub fn integer(&mut self, name: &str, least: u64, most: u64) -> Result<Option<u64>, ApiError> {
        let Some(number) = self.take::<serde_json::Number>(name)? else { return Ok(None) };
        // 2.0 is a whole number too.
        let whole = number.as_f64().filter(|number| number.fract() == 0.0 && (0.0..9e15).contains(number));
        match number.as_u64().or(whole.map(|number| number as u64)).filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None if most == u64::MAX => Err(refused(name, &number, &format!("a whole number of at least {least}"))),
            None => Err(refused(name, &number, &format!("a whole number from {least} to {most}"))),
        }
    }

    /// Takes a number that `is_right`, which `wanted` says in words.
    ///
    /// # Errors
    /// Returns an error if the value is of another kind.
    pub fn number(&mut self, name: &str, is_right: fn(f64) -> bool, wanted: &str) -> Result<Option<f32>, ApiError> {
        let Some(number) = self.take::<serde_json::Number>(name)? else { return Ok(None) };
        match number.as_f64().filter(|&number| is_right(number)) {
            Some(right) => Ok(Some(right as f32)),
            None => Err(refused(name, &number, wanted)),
        }
    }

    /// Refuses the first remaining field as unknown.
    ///
    /// # Errors
    /// Returns an error if a field that is not null remains.
    pub fn end(self) -> Result<(), ApiError> {
        match self.0.into_iter().find(|(_, text)| text.get() != "null") {
            Some((name, _)) => {
                let name = short(&name);
                Err(ApiError::parameter(&*name, format!("`{name}` is not known here")))
            }
            None => Ok(()),
        }
    }

    /// Suggests a name for the first remaining field that looks like a misspelling of one of these.
    ///
    /// # Errors
    /// Returns an error if there is such a field.
    pub fn end_but_near(self, meant: &[&str]) -> Result<(), ApiError> {
        let near = |name: &str| meant.iter().find(|meant| is_near(name, meant));
        match self.0.keys().find_map(|name| Some((name, near(name)?))) {
            Some((name, meant)) => {
                let name = short(name);
                let message = format!("`{name}` is not known here; did you mean `{meant}`?");
                Err(ApiError::parameter(&*name, message))
            }
            None => Ok(()),
        }
    }
}

/// Error about a field. The place of the error within the field is left out: it says little without
/// the field's own place.
fn wrong(name: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    ApiError::parameter(name, format!("`{name}`: {}", shortened(what)))
}

/// Beginning and end of a parser's message, which repeats its input at any length.
fn shortened(message: &str) -> String {
    const EACH: usize = 120;
    if message.chars().count() <= 2 * EACH {
        return message.to_owned();
    }
    let letters: Vec<char> = message.chars().collect();
    let part = |letters: &[char]| letters.iter().collect::<String>();
    format!("{} .. {}", part(&letters[..EACH]), part(&letters[letters.len() - EACH..]))
}

fn refused(name: &str, found: &serde_json::Number, wanted: &str) -> ApiError {
    ApiError::parameter(name, format!("`{name}` {found}: must be {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::from_json(json.as_bytes()).expect("an object")
    }

    #[test]
    fn whatever_is_wrong_has_its_name() {
        let mut read = fields(r#"{"a": 1.5, "b": 3, "c": "x", "d": null, "e": 2.0, "f": -1, "g": 1e400}"#);
        let names = |error: ApiError| (error.status.as_u16(), error.param.expect("a name"));
        assert_eq!(names(read.integer("a", 0, 9).unwrap_err()), (400, "a".into()));
        let error = read.integer("b", 4, 9).unwrap_err();
        assert_eq!(error.message, "`b` 3: must be a whole number from 4 to 9");
        assert_eq!(names(read.take::<bool>("c").unwrap_err()), (400, "c".into()));
        assert_eq!((read.take::<bool>("d"), read.take::<bool>("absent")), (Ok(None), Ok(None)));
        assert_eq!(read.integer("e", 0, 9), Ok(Some(2)));
        assert_eq!(names(read.integer("f", 0, u64::MAX).unwrap_err()), (400, "f".into()));
        assert_eq!(names(read.number("g", |_| true, "a number").unwrap_err()), (400, "g".into()));
        assert_eq!(read.end(), Ok(()));
        assert_eq!(names(fields(r#"{"h": null, "i": 0}"#).end().unwrap_err()), (400, "i".into()));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
        for bytes in [&b""[..], b"[]", b"5", b"{\"a\"", b"{\"a\": \xff}", b"\xff", b"{} {}"] {
            let error = Fields::from_json(bytes).err().expect("refused");
            assert!(error.status.as_u16() == 400 && !error.message.contains('\n'), "{error:?}");
        }
        let error = fields(&deep).take::<serde_json::Value>("a").unwrap_err();
        assert!(error.message.contains("recursion limit"), "{error:?}");
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused() {
        let error = Fields::from_json(br#"{"seed": 1, "seed": 2}"#).err().expect("refused");
        assert!(error.message.contains("`seed` is there twice"), "{error:?}");
        let many = (0..=FIELDS).map(|index| format!("\"{index}\": 0")).collect::<Vec<_>>().join(",");
        let error = Fields::from_json(format!("{{{many}}}").as_bytes()).err().expect("refused");
        assert!(error.message.contains("more than 256 fields"), "{error:?}");
    }

    #[test]
    fn only_texts_of_prompts_may_be_long() {
        let long = format!("{{\"a\": [{}0]}}", "0, ".repeat(VALUE_BYTES / 3));
        let error = fields(&long).take::<Vec<u8>>("a").unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("a")), "{error:?}");
        assert_eq!(
            fields(&long).take_long::<Vec<u8>>("a").map(|list| list.map_or(0, |list| list.len())),
            Ok(VALUE_BYTES / 3 + 1)
        );
        let message =
            RawValue::from_string(format!("{{\"content\": \"x\", \"tool_calls\": {}}}", &long[6..long.len() - 1]));
        let error = object::<String>(&message.expect("JSON"), "content").expect_err("refused");
        assert!(error.starts_with("`tool_calls` has ") && error.ends_with("; at most 1048576"), "{error}");
    }

    #[test]
    fn long_values_are_not_repeated_whole() {
        let long = "x".repeat(100_000);
        let error = fields(&format!("{{\"a\": \"{long}\"}}")).take::<bool>("a").unwrap_err();
        assert!(error.message.len() < 400, "{}", error.message.len());
        let error = fields(&format!("{{\"{long}\": 1}}")).end().unwrap_err();
        assert!(error.message.len() < 400 && error.param.expect("a name").len() < 100);
    }

    #[test]
    fn only_json_is_json() {
        let of = |kind: &'static str| {
            is_json(&HeaderMap::from_iter([(header::CONTENT_TYPE, header::HeaderValue::from_static(kind))]))
        };
        assert!(of("application/json") && of("Application/JSON; charset=utf-8") && of("application/x+json"));
        assert!(
            !of("text/plain") && !of("application/x-www-form-urlencoded") && !of("") && !is_json(&HeaderMap::new())
        );
    }
}
