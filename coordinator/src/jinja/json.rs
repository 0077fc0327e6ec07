//! `tojson` as in Hugging Face's templates: Python's `json.dumps` with `ensure_ascii` off.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, State};

use super::budget::{charge, wrong};
use super::python;

/// Style of a value's text.
struct Style {
    ascii: bool,
    indent: Option<String>,
    between: String,
    behind_key: String,
    sorted: bool,
}

/// Writes a value as JSON; `named` and the values before it are as in Python: `ensure_ascii`,
/// `indent`, `separators`, `sort_keys`.
///
/// # Errors
/// Returns an error if JSON cannot represent a value.
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    ascii: Option<Value>,
    indent: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let option = |given: Option<Value>, name| match given {
        Some(value) => Ok(value),
        None => Ok::<_, Error>(named.get::<Option<Value>>(name)?.unwrap_or_default()),
    };
    let (ascii, indent) = (option(ascii, "ensure_ascii")?.is_true(), option(indent, "indent")?);
    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => Some(indent.as_str().unwrap_or_default().to_owned()),
        _ => {
            let spaces = i64::try_from(indent).map_err(|_| wrong("indent is a number or a text"))?;
            Some(" ".repeat(usize::try_from(spaces).unwrap_or(0).min(1000)))
        }
    };
    let separators = named.get::<Option<Value>>("separators")?.filter(|value| !value.is_none());
    let at = |index: usize| {
        separators.as_ref().and_then(|pair| pair.get_item_by_index(index).ok()).map(|text| python::text(&text))
    };
    let between = at(0).unwrap_or_else(|| if indent.is_some() { "," } else { ", " }.to_owned());
    let behind_key = at(1).unwrap_or_else(|| ": ".to_owned());
    let sorted = named.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    named.assert_all_used()?;
    let style = Style { ascii, indent, between, behind_key, sorted };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    charge(state, out.len())?;
    Ok(out)
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > 100 {
            return Err(wrong("a value of more than 100 levels"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                let elements: Vec<Value> = value.try_iter()?.collect();
                self.write_all(elements.len(), depth, ('[', ']'), out, |index, out| {
                    self.write(&elements[index], depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    pairs.push((key_text(&key)?, value.get_item(&key)?));
                }
                if self.sorted {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_all(pairs.len(), depth, ('{', '}'), out, |index, out| {
                    self.write_text(&pairs[index].0, out);
                    out.push_str(&self.behind_key);
                    self.write(&pairs[index].1, depth + 1, out)
                })?;
            }
            kind => return Err(wrong(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_all(
        &self,
        count: usize,
        depth: usize,
        (open, close): (char, char),
        out: &mut String,
        each: impl Fn(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_ref().filter(|_| count > 0) {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for index in 0..count {
            if index > 0 {
                out.push_str(&self.between);
            }
            line(depth + 1, out);
            each(index, out)?;
        }
        line(depth, out);
        out.push(close);
        Ok(())
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for letter in text.chars() {
            _ = match letter {
                '"' => write!(out, "\\\""),
                '\\' => write!(out, "\\\\"),
                '\n' => write!(out, "\\n"),
                '\r' => write!(out, "\\r"),
                '\t' => write!(out, "\\t"),
                '\u{8}' => write!(out, "\\b"),
                '\u{c}' => write!(out, "\\f"),
                _ if u32::from(letter) < 0x20 || self.ascii && !(' '..='~').contains(&letter) => {
                    let mut units = [0; 2];
                    letter.encode_utf16(&mut units).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
                }
                _ => write!(out, "{letter}"),
            };
        }
        out.push('"');
    }
}

fn number(value: &Value) -> String {
    let text = python::text(value);
    match text.as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        _ => text,
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::String | ValueKind::Number => Ok(python::text(key)),
        kind => Err(wrong(format!("keys of JSON are no {kind}"))),
    }
}
