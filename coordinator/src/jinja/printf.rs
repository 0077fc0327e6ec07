//! `'%s of %d' % (a, b)`, as Python does it.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::budget::wrong;
use super::python::{as_tuple, repr, text};

/// Maximum width or precision.
const WIDTH: usize = 10_000;

/// One `%` with its conversion.
#[derive(Default)]
struct Mark {
    name: Option<String>,
    left: bool,
    zeros: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// The values of a format, in turn or by name.
struct Values<'a> {
    all: &'a Value,
    next: usize,
}

/// A format with its values; `made` counts bytes.
///
/// # Errors
/// Returns an error for an unknown mark, or for too few or too many values.
pub(super) fn formatted(
    format: &str,
    values: &Value,
    made: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut values = Values { all: values, next: 0 };
    let (mut out, mut rest) = (String::new(), format);
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let (mark, kind, after) = read_mark(after, &mut values)?;
        let text = if kind == '%' { "%".to_owned() } else { written(&mark, kind, &values.take(&mark)?)? };
        made(text.len())?;
        out.push_str(&text);
        rest = after;
    }
    made(format.len())?;
    let is_mapping = values.all.kind() == ValueKind::Map;
    if values.next < values.count() && !is_mapping {
        return Err(wrong("not all arguments converted during string formatting"));
    }
    out.push_str(rest);
    Ok(out)
}

impl Values<'_> {
    fn count(&self) -> usize {
        as_tuple(self.all).map_or(1, |tuple| tuple.0.len())
    }

    fn take(&mut self, mark: &Mark) -> Result<Value, Error> {
        if let Some(name) = &mark.name {
            let found = self.all.get_attr(name).ok().filter(|value| !value.is_undefined());
            return found.ok_or_else(|| wrong(format!("the format names `{name}`, which is not there")));
        }
        let value = match as_tuple(self.all) {
            Some(tuple) => tuple.0.get(self.next).cloned(),
            None => (self.next == 0).then(|| self.all.clone()),
        };
        self.next += 1;
        value.ok_or_else(|| wrong("not enough arguments for format string"))
    }
}

fn read_mark<'t>(text: &'t str, values: &mut Values<'_>) -> Result<(Mark, char, &'t str), Error> {
    let incomplete = || wrong("incomplete format");
    let mut mark = Mark::default();
    let mut rest = text;
    if let Some(named) = rest.strip_prefix('(') {
        let (name, after) = named.split_once(')').ok_or_else(incomplete)?;
        (mark.name, rest) = (Some(name.to_owned()), after);
    }
    while let Some(flag) = rest.chars().next().filter(|letter| "-0+ #".contains(*letter)) {
        match flag {
            '-' => mark.left = true,
            '0' => mark.zeros = true,
            '+' => mark.plus = true,
            ' ' => mark.space = true,
            _ => mark.alternate = true,
        }
        rest = &rest[1..];
    }
    mark.width = size(&mut rest, values)?.unwrap_or(0);
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        mark.precision = Some(size(&mut rest, values)?.unwrap_or(0));
    }
    rest = rest.trim_start_matches(['h', 'l', 'L']);
    let kind = rest.chars().next().ok_or_else(incomplete)?;
    Ok((mark, kind, &rest[kind.len_utf8()..]))
}

fn size(rest: &mut &str, values: &mut Values<'_>) -> Result<Option<usize>, Error> {
    let too_wide = || wrong("a width beyond the limit of templates");
    if let Some(after) = rest.strip_prefix('*') {
        *rest = after;
        let size = values.take(&Mark::default())?.as_usize().filter(|size| *size <= WIDTH);
        return size.map(Some).ok_or_else(too_wide);
    }
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    *rest = after;
    if digits.is_empty() {
        return Ok(None);
    }
    digits.parse().ok().filter(|size| *size <= WIDTH).map(Some).ok_or_else(too_wide)
}

fn numeric(value: &Value) -> Result<f64, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).map_err(|_| wrong("a number out of range")),
        kind => Err(wrong(format!("%d format: a real number is required, not {kind}"))),
    }
}

fn whole(value: &Value) -> Result<i128, Error> {
    match i128::try_from(value.clone()) {
        Ok(whole) if value.is_integer() => Ok(whole),
        _ => numeric(value).map(|float| float.trunc() as i128),
    }
}

fn written(mark: &Mark, kind: char, value: &Value) -> Result<String, Error> {
    let cut = |text: String| match mark.precision {
        Some(letters) => text.chars().take(letters).collect(),
        None => text,
    };
    let (digits, negative) = match kind {
        's' => return Ok(padded(mark, cut(text(value)))),
        'r' | 'a' => return Ok(padded(mark, cut(repr(value)))),
        'c' => return Ok(padded(mark, text(value))),
        'd' | 'i' | 'u' => {
            let number = whole(value)?;
            (format!("{:0>1$}", number.unsigned_abs().to_string(), mark.precision.unwrap_or(1)), number < 0)
        }
        'x' | 'X' | 'o' => {
            let number = whole(value)?;
            let (digits, prefix) = match kind {
                'x' => (format!("{:x}", number.unsigned_abs()), "0x"),
                'X' => (format!("{:X}", number.unsigned_abs()), "0X"),
                _ => (format!("{:o}", number.unsigned_abs()), "0o"),
            };
            (format!("{}{digits}", if mark.alternate { prefix } else { "" }), number < 0)
        }
        'f' | 'F' => {
            let number = numeric(value)?;
            (format!("{:.*}", mark.precision.unwrap_or(6), number.abs()), number.is_sign_negative())
        }
        'e' | 'E' => {
            let number = numeric(value)?;
            let text = format!("{:.*e}", mark.precision.unwrap_or(6), number.abs());
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            (format!("{digits}{kind}{sign}{:02}", exponent.abs()), number.is_sign_negative())
        }
        'g' | 'G' => {
            let number = numeric(value)?;
            (general(number.abs(), mark.precision.unwrap_or(6).max(1)), number.is_sign_negative())
        }
        other => return Err(wrong(format!("unsupported format character `{other}`"))),
    };
    let sign = match (negative, mark.plus, mark.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    };
    let room = mark.width.saturating_sub(sign.len() + digits.len());
    if mark.zeros && !mark.left {
        return Ok(format!("{sign}{}{digits}", "0".repeat(room)));
    }
    Ok(padded(mark, format!("{sign}{digits}")))
}

/// `%g` of a number that is not negative.
fn general(number: f64, precision: usize) -> String {
    let scientific = format!("{number:.*e}", precision - 1);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let short = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= i32::try_from(precision).unwrap_or(i32::MAX) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", short(digits), exponent.abs());
    }
    let places = usize::try_from(i32::try_from(precision).unwrap_or(i32::MAX) - 1 - exponent).unwrap_or(0);
    short(&format!("{number:.places$}"))
}

fn padded(mark: &Mark, text: String) -> String {
    let room = mark.width.saturating_sub(text.chars().count());
    if mark.left { text + &" ".repeat(room) } else { " ".repeat(room) + &text }
}
