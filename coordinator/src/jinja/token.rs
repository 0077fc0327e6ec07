//! The words and signs of a tag, with their places.

/// A word or sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// Its characters.
    pub(super) text: &'a str,
    /// Its first byte in the tag.
    pub(super) start: usize,
    /// Its kind.
    pub(super) kind: Kind,
}

/// Kinds of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name or keyword.
    Name,
    /// A string.
    Text,
    /// A number.
    Number,
    /// An operator, bracket or comma.
    Sign,
}

/// Signs of two characters.
const PAIRS: [&str; 7] = ["//", "**", "==", "!=", "<=", ">=", "->"];

impl Token<'_> {
    /// Its end in the tag.
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// The tokens of a tag's body; `None` if it has an unclosed string. A sign of whitespace control at
/// either end is not a token.
pub(super) fn tokens(body: &str) -> Option<Vec<Token<'_>>> {
    let last = body.len() - usize::from(body.ends_with(['-', '+']));
    let mut at = usize::from(body.starts_with(['-', '+']));
    let mut tokens = Vec::new();
    while at < last {
        let rest = &body[at..last];
        let letter = rest.chars().next()?;
        if letter.is_whitespace() {
            at += letter.len_utf8();
            continue;
        }
        let (kind, length) = if letter.is_alphabetic() || letter == '_' {
            let ends = |c: char| !c.is_alphanumeric() && c != '_';
            (Kind::Name, rest.find(ends).unwrap_or(rest.len()))
        } else if letter.is_ascii_digit() {
            (Kind::Number, number_length(rest))
        } else if matches!(letter, '\'' | '"') {
            (Kind::Text, text_length(rest, letter)?)
        } else if PAIRS.iter().any(|pair| rest.starts_with(pair)) {
            (Kind::Sign, 2)
        } else {
            (Kind::Sign, letter.len_utf8())
        };
        tokens.push(Token { text: &rest[..length], start: at, kind });
        at += length;
    }
    Some(tokens)
}

fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |mut at: usize| {
        while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_') {
            at += 1;
        }
        at
    };
    let mut end = digits(1);
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end = digits(end + 1);
    }
    let is_decimal = !text.starts_with("0x") && !text.starts_with("0X");
    if is_decimal && matches!(bytes[end - 1], b'e' | b'E') && matches!(bytes.get(end), Some(b'-' | b'+')) {
        end = digits(end + 1);
    }
    end
}

fn text_length(text: &str, quote: char) -> Option<usize> {
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        if letter == '\\' {
            letters.next();
        } else if letter == quote {
            return Some(at + 1);
        }
    }
    None
}
