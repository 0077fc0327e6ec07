//! Values as Python prints them.

use std::fmt::Write;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use std::sync::Arc;

/// A Python tuple. Only its printed form differs from a list's.
#[derive(Debug)]
pub(super) struct Tuple(pub(super) Vec<Value>);

/// Result of `dict.items()` and similar methods: it can be iterated, and prints with its name.
#[derive(Debug)]
pub(super) struct View {
    pub(super) name: &'static str,
    pub(super) values: Vec<Value>,
}

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.values.clone())
    }
}

/// Whether a value is a tuple.
pub(super) fn as_tuple(value: &Value) -> Option<&Tuple> {
    value.downcast_object_ref::<Tuple>()
}

/// A tuple of two.
pub(super) fn pair(first: Value, second: Value) -> Value {
    Value::from_object(Tuple(vec![first, second]))
}

/// `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => repr(value),
    }
}

/// `repr(value)`; empty for an undefined value.
pub(super) fn repr(value: &Value) -> String {
    let mut written = String::new();
    write_repr(value, &mut written, 0);
    written
}

fn write_repr(value: &Value, out: &mut String, depth: usize) {
    if depth > 100 {
        return out.push_str("...");
    }
    let list = |out: &mut String, open: &str, close: &str| {
        out.push_str(open);
        let mut count = 0;
        for element in value.try_iter().into_iter().flatten() {
            if count > 0 {
                out.push_str(", ");
            }
            write_repr(&element, out, depth + 1);
            count += 1;
        }
        if count == 1 && open == "(" {
            out.push(',');
        }
        out.push_str(close);
    };
    match value.kind() {
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq if as_tuple(value).is_some() => list(out, "(", ")"),
        ValueKind::Seq => list(out, "[", "]"),
        ValueKind::Iterable => match value.downcast_object_ref::<View>() {
            Some(view) => list(out, &format!("{}([", view.name), "])"),
            None => list(out, "[", "]"),
        },
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, out, depth + 1);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), out, depth + 1);
            }
            out.push('}');
        }
        _ => _ = write!(out, "{value}"),
    }
}

/// A number's text.
fn number(value: &Value) -> String {
    if value.is_integer() { value.to_string() } else { float(f64::try_from(value.clone()).unwrap_or(f64::NAN)) }
}

/// `repr` of a float: the shortest digits that read back as it, with an exponent below 1e-4 and
/// from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent if value != 0.0 && !(-4..16).contains(&exponent) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => format!("{value:?}"),
    }
}

/// A string in quotes, with Python's escapes.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for letter in text.chars() {
        _ = match letter {
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            _ if letter == quote => write!(out, "\\{letter}"),
            _ if is_printable(letter) => write!(out, "{letter}"),
            _ if u32::from(letter) < 0x100 => write!(out, "\\x{:02x}", u32::from(letter)),
            _ if u32::from(letter) < 0x1_0000 => write!(out, "\\u{:04x}", u32::from(letter)),
            _ => write!(out, "\\U{:08x}", u32::from(letter)),
        };
    }
    out.push(quote);
}

/// Whether Python prints a character unescaped.
fn is_printable(letter: char) -> bool {
    let is_space = letter.is_whitespace() && letter != ' ';
    let is_format = matches!(u32::from(letter),
        0xAD | 0x600..=0x605 | 0x61C | 0x6DD | 0x70F | 0x180E | 0x200B..=0x200F | 0x202A..=0x202E | 0x2060..=0x206F
        | 0xE000..=0xF8FF | 0xFEFF | 0xFFF0..=0xFFFB | 0xE0000..=0xE0FFF | 0xF0000..=0x0010_FFFF);
    !letter.is_control() && !is_space && !is_format
}
