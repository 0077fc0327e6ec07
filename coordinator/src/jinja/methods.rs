//! Methods of Python's strings, lists and dicts that minijinja and its contributions lack, or that
//! differ there.

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, State};
use minijinja_contrib::pycompat;

use super::arithmetic::like;
use super::budget::{ELEMENT_BYTES, charge, made, wrong};
use super::python::{Tuple, View, pair};

/// Calls a method of a value.
///
/// # Errors
/// Returns an error if the value has no method of that name, or if its arguments are invalid.
pub(super) fn method(state: &State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let found = match value.kind() {
        ValueKind::String => of_text(state, value.as_str().unwrap_or_default(), name, args)?,
        ValueKind::Seq => of_list(state, value, name, args)?,
        ValueKind::Map => of_dict(state, value, name, args)?,
        _ => None,
    };
    match found {
        Some(value) => Ok(value),
        None => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// `value.items()` and similar methods, which a key of that name does not hide.
///
/// # Errors
/// As [`method`].
pub(super) fn of_a_dict(state: &State<'_, '_>, name: &str, value: &Value, args: &[Value]) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => method(state, value, name, args),
        _ => value.call_method(state, name, args),
    }
}

fn of_dict(state: &State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let keys = || value.try_iter();
    let at = |key: &Value| value.get_item(key).unwrap_or_default();
    let view = |name, values: Vec<Value>| {
        charge(state, values.len() * ELEMENT_BYTES)?;
        Ok(Some(Value::from_object(View { name, values })))
    };
    match name {
        "items" => view("dict_items", keys()?.map(|key| pair(key.clone(), at(&key))).collect()),
        "keys" => view("dict_keys", keys()?.collect()),
        "values" => view("dict_values", keys()?.map(|key| at(&key)).collect()),
        "get" => {
            let (key, default): (&Value, Option<&Value>) = from_args(args)?;
            let found = Some(at(key)).filter(|value| !value.is_undefined());
            Ok(Some(found.or_else(|| default.cloned()).unwrap_or_else(|| Value::from(()))))
        }
        "copy" => Ok(Some(value.clone())),
        "update" | "pop" | "popitem" | "clear" | "setdefault" => Err(unsafe_method(name)),
        _ => Ok(None),
    }
}

fn of_list(state: &State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match name {
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let place = value.try_iter()?.position(|element| element == *wanted);
            place.map(|place| Some(place.into())).ok_or_else(|| wrong("the value is not in the list"))
        }
        "copy" => {
            let elements: Vec<Value> = value.try_iter()?.collect();
            charge(state, elements.len() * ELEMENT_BYTES)?;
            Ok(Some(like(value, elements)))
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => Err(unsafe_method(name)),
        _ => Ok(None),
    }
}

/// The sandbox lets no template change a value.
fn unsafe_method(name: &str) -> Error {
    wrong(format!("access to the method `{name}` is unsafe: a template must not change values"))
}

fn of_text(state: &State<'_, '_>, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let made = |text: String| made(state, text).map(|text| Some(Value::from(text)));
    match name {
        "center" | "ljust" | "rjust" => made(aligned(text, name, args)?),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            let room = room(text, width)?;
            made(format!("{sign}{}{digits}", "0".repeat(room)))
        }
        "swapcase" => made(text.chars().flat_map(swapped).collect()),
        "casefold" => made(text.to_lowercase().replace('ß', "ss")),
        "title" => made(titled(text)),
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(args)?;
            made(tabs_expanded(text, size.unwrap_or(8).min(MOST))?)
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            made(text.strip_prefix(prefix).unwrap_or(text).to_owned())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            made(text.strip_suffix(suffix).unwrap_or(text).to_owned())
        }
        "replace" => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
            let finds = text.matches(from).take(count).count();
            charge(state, text.len().saturating_add(finds.saturating_mul(to.len())))?;
            Ok(Some(text.replacen(from, to, count).into()))
        }
        "partition" | "rpartition" => Ok(Some(partitioned(text, name == "rpartition", args)?)),
        _ => more_of_text(state, text, name, args),
    }
}

/// Methods that search a text, and all others.
fn more_of_text(state: &State<'_, '_>, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match name {
        "split" | "rsplit" => {
            let parts = split(text, name == "rsplit", args)?;
            charge(state, text.len() + parts.len() * ELEMENT_BYTES)?;
            Ok(Some(parts.into_iter().map(Value::from).collect::<Vec<_>>().into()))
        }
        "find" | "rfind" | "index" | "rindex" => {
            let place = found(text, name.starts_with('r'), args)?;
            match place {
                Some(place) => Ok(Some(place.into())),
                None if name.ends_with("index") => Err(wrong("substring not found")),
                None => Ok(Some(Value::from(-1))),
            }
        }
        "startswith" | "endswith" => Ok(Some(begins_or_ends(text, name == "endswith", args)?.into())),
        "join" => {
            let (values,): (&Value,) = from_args(args)?;
            let mut parts = Vec::new();
            for value in values.try_iter()? {
                let part = value.as_str().ok_or_else(|| wrong("a value that is no string is joined"))?;
                charge(state, part.len() + text.len())?;
                parts.push(part.to_owned());
            }
            Ok(Some(parts.join(text).into()))
        }
        "translate" => {
            let (table,): (&Value,) = from_args(args)?;
            let translated = text.chars().map(|letter| translated(letter, table)).collect();
            Ok(Some(made(state, translated)?.into()))
        }
        "format" => {
            let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).count();
            if text.split([':', '.', '<', '>', '^']).any(|part| digits(part) > 4) {
                return Err(wrong("a width beyond the limit of templates"));
            }
            Ok(None)
        }
        _ => Ok(is_of_kind(text, name).map(Value::from)),
    }
}

/// Maximum width.
const MOST: usize = 100_000;

fn room(text: &str, width: usize) -> Result<usize, Error> {
    if width > MOST {
        return Err(wrong("a width beyond the limit of templates"));
    }
    Ok(width.saturating_sub(text.chars().count()))
}

fn aligned(text: &str, name: &str, args: &[Value]) -> Result<String, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let fill = fill.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(wrong("the fill character must be exactly one character long"));
    }
    Ok(filled(text, name, width, fill, room(text, width)?))
}

fn filled(text: &str, name: &str, width: usize, fill: &str, room: usize) -> String {
    // If the room is odd, Python puts the odd one before the text if the width is odd too.
    let before = match name {
        "ljust" => 0,
        "rjust" => room,
        _ => room / 2 + (room & width & 1),
    };
    format!("{}{text}{}", fill.repeat(before), fill.repeat(room - before))
}

/// A text centered in a width, as `str.center` does.
pub(super) fn centered(text: &str, width: usize) -> Result<String, Error> {
    Ok(filled(text, "center", width, " ", room(text, width)?))
}

fn swapped(letter: char) -> Vec<char> {
    if letter.is_uppercase() { letter.to_lowercase().collect() } else { letter.to_uppercase().collect() }
}

fn titled(text: &str) -> String {
    let (mut titled, mut inside) = (String::with_capacity(text.len()), false);
    for letter in text.chars() {
        if inside {
            titled.extend(letter.to_lowercase())
        } else {
            titled.extend(letter.to_uppercase())
        }
        inside = letter.is_alphabetic();
    }
    titled
}

fn tabs_expanded(text: &str, size: usize) -> Result<String, Error> {
    if text.matches('\t').count().saturating_mul(size) > MOST * 100 {
        return Err(wrong("tabs beyond the limit of templates"));
    }
    let (mut expanded, mut column) = (String::new(), 0);
    for letter in text.chars() {
        match letter {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                expanded.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\t' => {}
            _ => {
                expanded.push(letter);
                column = if letter == '\n' || letter == '\r' { 0 } else { column + 1 };
            }
        }
    }
    Ok(expanded)
}

fn partitioned(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(wrong("empty separator"));
    }
    let parts = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match parts {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from_object(Tuple(parts.into_iter().map(Value::from).collect())))
}

fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Vec<String>, Error> {
    let (separator, count, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => named.get::<Option<Value>>("sep")?,
    };
    let count = match count {
        Some(count) => Some(count),
        None => named.get::<Option<i64>>("maxsplit")?,
    };
    named.assert_all_used()?;
    let most = count.and_then(|count| usize::try_from(count).ok()).map_or(usize::MAX, |count| count.saturating_add(1));
    let separator = separator.filter(|separator| !separator.is_none() && !separator.is_undefined());
    let Some(separator) = separator else { return Ok(words(text, from_right, most)) };
    let separator = separator.as_str().filter(|text| !text.is_empty()).ok_or_else(|| wrong("empty separator"))?;
    if !from_right {
        return Ok(text.splitn(most, separator).map(str::to_owned).collect());
    }
    let mut parts: Vec<String> = text.rsplitn(most, separator).map(str::to_owned).collect();
    parts.reverse();
    Ok(parts)
}

/// The words of a text, in at most `most` parts.
fn words(text: &str, from_right: bool, most: usize) -> Vec<String> {
    let (mut parts, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let Some(cut) = cut.filter(|_| parts.len() + 1 < most) else { break };
        let (word, left) = if from_right {
            let after = cut + rest[cut..].chars().next().map_or(1, char::len_utf8);
            (&rest[after..], rest[..cut].trim_end())
        } else {
            (&rest[..cut], rest[cut..].trim_start())
        };
        parts.push(word.to_owned());
        rest = left;
    }
    if !rest.is_empty() {
        parts.push(rest.to_owned());
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// A part of a text between two places, counted in characters, and the bytes before it.
fn part(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(&str, usize)> {
    let letters = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let place = |place: i64| if place < 0 { (place + letters).max(0) } else { place.min(letters) };
    if start.is_some_and(|start| start > letters) {
        return None;
    }
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(letters)));
    let bytes = |letter: i64| {
        let letter = usize::try_from(letter).unwrap_or(usize::MAX);
        text.char_indices().nth(letter).map_or(text.len(), |(byte, _)| byte)
    };
    (start <= end).then(|| (&text[bytes(start)..bytes(end)], bytes(start)))
}

fn found(text: &str, from_right: bool, args: &[Value]) -> Result<Option<usize>, Error> {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((part, before)) = part(text, start, end) else { return Ok(None) };
    let place = if from_right { part.rfind(wanted) } else { part.find(wanted) };
    Ok(place.map(|place| text[..before + place].chars().count()))
}

fn begins_or_ends(text: &str, ends: bool, args: &[Value]) -> Result<bool, Error> {
    let (wanted, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((part, _)) = part(text, start, end) else { return Ok(false) };
    let is = |wanted: &str| if ends { part.ends_with(wanted) } else { part.starts_with(wanted) };
    if let Some(wanted) = wanted.as_str() {
        return Ok(is(wanted));
    }
    let no_text = || wrong("it takes a string or a tuple of strings");
    if wanted.kind() != ValueKind::Seq {
        return Err(no_text());
    }
    for wanted in wanted.try_iter()? {
        if is(wanted.as_str().ok_or_else(no_text)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn translated(letter: char, table: &Value) -> String {
    let found = table.get_item(&Value::from(u32::from(letter))).unwrap_or_default();
    match found.kind() {
        ValueKind::None => String::new(),
        ValueKind::String => found.as_str().unwrap_or_default().to_owned(),
        ValueKind::Number => found
            .as_usize()
            .and_then(|code| char::from_u32(u32::try_from(code).ok()?))
            .map(String::from)
            .unwrap_or_default(),
        _ => letter.into(),
    }
}

/// `str.isalpha()` and similar methods; `None` for another name.
fn is_of_kind(text: &str, name: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let cased = |is: fn(char) -> bool, not: fn(char) -> bool| text.chars().any(is) && !text.chars().any(not);
    Some(match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isdecimal" | "isdigit" => all(|letter| letter.is_ascii_digit()),
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(char::is_whitespace),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isascii" => text.is_ascii(),
        "isprintable" => !text.chars().any(char::is_control),
        "istitle" => text.chars().any(char::is_alphabetic) && titled(text) == text,
        "isidentifier" => {
            let first = text.chars().next().is_some_and(|letter| letter.is_alphabetic() || letter == '_');
            first && text.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
        }
        _ => return None,
    })
}
