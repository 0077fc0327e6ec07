//! Filters of text.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, State};

use super::budget::{made, wrong};
use super::methods;
use super::python::text;

/// Adds them to an environment.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("upper", |value: &Value| text(value).to_uppercase());
    environment.add_filter("lower", |value: &Value| text(value).to_lowercase());
    environment.add_filter("capitalize", |value: &Value| capitalized(&text(value)));
    environment.add_filter("title", |value: &Value| titled(&text(value)));
    environment.add_filter("trim", trim);
    environment.add_filter("indent", indent);
    environment.add_filter("wordwrap", wordwrap);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", |value: &Value| {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        text(value).split(|letter| !is_word(letter)).filter(|word| !word.is_empty()).count()
    });
    environment.add_filter("center", |state: &State<'_, '_>, value: &Value, width: Option<usize>| {
        made(state, methods::centered(&text(value), width.unwrap_or(80))?)
    });
    environment.add_filter("striptags", |value: &Value| stripped(&text(value)));
    environment.add_filter("urlencode", |value: &Value| urlencoded(&text(value)));
    environment.add_filter("filesizeformat", filesize);
    environment.add_filter("xmlattr", xmlattr);
}

/// Arguments that may come in their order or by name.
struct Given {
    in_order: Vec<Value>,
    named: Kwargs,
}

impl Given {
    fn of(mut given: Rest<Value>) -> Result<Self, Error> {
        let named = given.0.pop_if(|last| last.is_kwargs()).map(Kwargs::try_from).transpose()?;
        Ok(Self { in_order: given.0, named: named.unwrap_or_else(|| Kwargs::from_iter(Vec::<(String, Value)>::new())) })
    }

    fn value(&self, place: usize, name: &str) -> Result<Option<Value>, Error> {
        match self.in_order.get(place) {
            Some(value) => Ok(Some(value.clone())),
            None => self.named.get(name),
        }
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.as_str().to_lowercase().chars()).collect()
}

/// Jinja's own `title`: a word begins after space, a hyphen or an opening bracket.
fn titled(text: &str) -> String {
    let (mut titled, mut begins) = (String::with_capacity(text.len()), true);
    for letter in text.chars() {
        if begins {
            titled.extend(letter.to_uppercase())
        } else {
            titled.extend(letter.to_lowercase())
        }
        begins = letter.is_whitespace() || matches!(letter, '-' | '(' | '{' | '[' | '<');
    }
    titled
}

fn trim(value: &Value, letters: Option<Value>, named: Kwargs) -> Result<String, Error> {
    let letters = letters.or(named.get::<Option<Value>>("chars")?).filter(|letters| !letters.is_none());
    named.assert_all_used()?;
    let text = text(value);
    Ok(match letters.as_ref().and_then(Value::as_str) {
        Some(letters) => text.trim_matches(|letter| letters.contains(letter)).to_owned(),
        None => text.trim_matches(is_space).to_owned(),
    })
}

/// Whether `str.strip` removes a character.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

fn indent(state: &State<'_, '_>, value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let given = Given::of(given)?;
    let width = given.value(0, "width")?;
    let first = given.value(1, "first")?.is_some_and(|first| first.is_true());
    let blank = given.value(2, "blank")?.is_some_and(|blank| blank.is_true());
    let indention = match &width {
        Some(width) if width.kind() == ValueKind::String => text(width),
        Some(width) => {
            let spaces = width.as_usize().filter(|spaces| *spaces <= 1000);
            " ".repeat(spaces.ok_or_else(|| wrong("indent takes a number of spaces or a text"))?)
        }
        None => "    ".into(),
    };
    let text = text(value) + "\n";
    let made = text.len().saturating_add(text.matches('\n').count().saturating_mul(indention.len()));
    super::budget::charge(state, made)?;
    let mut lines: Vec<&str> = text.split('\n').collect();
    // The added line ends the text.
    lines.pop();
    let mut out = if first { indention.clone() } else { String::new() };
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
    }
    Ok(out.into())
}

fn wordwrap(value: &Value, width: Option<usize>, breaks: Option<bool>, newline: Option<String>) -> String {
    let (width, breaks) = (width.unwrap_or(79).max(1), breaks.unwrap_or(true));
    let newline = newline.unwrap_or_else(|| "\n".into());
    let wrapped = |line: &str| {
        let (mut lines, mut current) = (Vec::new(), String::new());
        for word in line.split_whitespace() {
            let length = |text: &str| text.chars().count();
            if !current.is_empty() && length(&current) + 1 + length(word) > width {
                lines.push(std::mem::take(&mut current));
            }
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
            while breaks && length(&current) > width {
                let cut = current.char_indices().nth(width).map_or(current.len(), |(at, _)| at);
                let rest = current.split_off(cut);
                lines.push(std::mem::replace(&mut current, rest));
            }
        }
        if !current.is_empty() || lines.is_empty() {
            lines.push(current);
        }
        lines.join(&newline)
    };
    text(value).lines().map(wrapped).collect::<Vec<_>>().join(&newline)
}

fn truncate(value: &Value, given: Rest<Value>) -> Result<String, Error> {
    let given = Given::of(given)?;
    let number = |value: Option<Value>, default| value.and_then(|value| value.as_usize()).unwrap_or(default);
    let length = number(given.value(0, "length")?, 255);
    let killwords = given.value(1, "killwords")?.is_some_and(|value| value.is_true());
    let end = given.value(2, "end")?.map_or_else(|| "...".into(), |end| text(&end));
    let leeway = number(given.value(3, "leeway")?, 5);
    let text = text(value);
    let letters = text.chars().count();
    if letters <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept =
        if killwords { kept.as_str() } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(before, _)| before) };
    Ok(format!("{kept}{end}"))
}

fn stripped(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('<') {
        out.push_str(before);
        match after.split_once('>') {
            Some((_, after)) => rest = after,
            None => {
                out.push('<');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn urlencoded(text: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-~/".contains(&byte);
    text.bytes().map(|byte| if safe(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn filesize(value: &Value, binary: Option<bool>) -> Result<String, Error> {
    let bytes = f64::try_from(value.clone()).map_err(|_| wrong("a size is a number"))?;
    let binary = binary.unwrap_or(false);
    let base = if binary { 1024.0 } else { 1000.0 };
    let names = if binary {
        ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    } else {
        ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]
    };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()));
    }
    let mut unit = base;
    for name in names {
        if bytes < unit * base || name.starts_with('Y') {
            return Ok(format!("{:.1} {name}", bytes / unit));
        }
        unit *= base;
    }
    Err(wrong("a size out of range"))
}

fn xmlattr(value: &Value, autospace: Option<bool>) -> Result<String, Error> {
    let mut attributes = Vec::new();
    for key in value.try_iter()? {
        let value = value.get_item(&key)?;
        if !value.is_none() && !value.is_undefined() {
            attributes.push(format!("{}=\"{}\"", escaped(&text(&key)), escaped(&text(&value))));
        }
    }
    let space = if autospace.unwrap_or(true) && !attributes.is_empty() { " " } else { "" };
    Ok(format!("{space}{}", attributes.join(" ")))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}
