//! Rewrites syntax that Jinja reads and minijinja does not, before the template is parsed: line
//! ends, the `generation` tag, and Python's operators. Strings, comments and raw blocks stay
//! unchanged.

use super::expression::rewrite;
use super::token::{Token, tokens};

/// Maximum bytes of a template.
const TEMPLATE_BYTES: usize = 2 << 20;
/// Maximum tokens of one tag, and maximum depth of nested tags: the limits of a recursive parser.
const TAG_TOKENS: usize = 4096;
const BLOCK_DEPTH: usize = 100;
/// Maximum depth of brackets, and of words and signs before a value such as `not` and `-`, within a
/// tag.
const BRACKET_DEPTH: usize = 40;

/// Statements that an end tag closes; `set` is one of them if it assigns nothing.
const BLOCKS: [&str; 9] = ["if", "for", "macro", "call", "filter", "with", "block", "autoescape", "generation"];

/// The template in minijinja's syntax.
///
/// # Errors
/// Returns a message if a template is longer or nested deeper than allowed.
pub(super) fn adapted(source: &str) -> Result<String, String> {
    if source.len() > TEMPLATE_BYTES {
        return Err(format!("it has {} bytes; a template has at most {TEMPLATE_BYTES}", source.len()));
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let (mut adapted, mut rest) = (String::with_capacity(source.len() * 2), source.as_str());
    let mut blocks = Vec::new();
    while let Some((before, opened)) = next_tag(rest) {
        adapted.push_str(before);
        let (kind, body) = opened.split_at(2);
        let end = match kind {
            "{#" => body.find("#}").map(|end| end + 2),
            "{{" => tag_end(body, "}}"),
            _ => tag_end(body, "%}"),
        };
        // The parser has the better message for an unclosed tag.
        let Some(end) = end else { return Ok(adapted + opened) };
        let (tag, after) = body.split_at(end);
        adapted.push_str(kind);
        rest = after;
        if kind == "{#" {
            adapted.push_str(tag);
            continue;
        }
        let inner = &tag[..end - 2];
        let word = inner.trim_start_matches(['-', '+']).trim_start();
        let word = &word[..word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len())];
        if kind == "{%" && word == "raw" {
            adapted.push_str(tag);
            let raw = raw_end(rest);
            adapted.push_str(&rest[..raw]);
            rest = &rest[raw..];
            continue;
        }
        if kind == "{%" {
            count_block(&mut blocks, word, inner);
            if blocks.iter().sum::<usize>() > BLOCK_DEPTH {
                return Err(format!("more than {BLOCK_DEPTH} blocks stand in each other"));
            }
        }
        adapted.push_str(&tag_body(inner, if kind == "{%" { word } else { "" })?);
        adapted.push_str(&tag[end - 2..]);
    }
    Ok(adapted + rest)
}

/// Counts a statement among the open blocks. Each is one level, and so is each of its `elif`.
fn count_block(open: &mut Vec<usize>, word: &str, inner: &str) {
    let assigns = || tokens(inner).is_none_or(|tokens| tokens.iter().any(|token| token.text == "="));
    if word.starts_with("end") {
        open.pop();
    } else if word == "elif" {
        open.last_mut().into_iter().for_each(|levels| *levels += 1);
    } else if BLOCKS.contains(&word) || word == "set" && !assigns() {
        open.push(1);
    }
}

/// The text before the next tag, and its opening mark.
fn next_tag(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(at) = text[from..].find('{') {
        let at = from + at;
        if matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')) {
            return Some(text.split_at(at));
        }
        from = at + 1;
    }
    None
}

/// End of a tag, after its closing mark, which counts outside of strings and brackets only.
fn tag_end(body: &str, close: &str) -> Option<usize> {
    let bytes = body.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        if depth == 0 && body[at..].starts_with(close) {
            return Some(at + close.len());
        }
        match bytes[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            quote @ (b'\'' | b'"') => {
                at += 1;
                while *bytes.get(at)? != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            _ => {}
        }
        at += 1;
        while at < bytes.len() && !body.is_char_boundary(at) {
            at += 1;
        }
    }
    None
}

/// Length of a raw block's text.
fn raw_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        let at = from + at;
        let inner = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        if inner.starts_with("endraw") {
            return at;
        }
        from = at + 2;
    }
    text.len()
}

/// The body of a tag that begins with `word`, if it is a statement.
fn tag_body(inner: &str, word: &str) -> Result<String, String> {
    if matches!(word, "generation" | "endgeneration") && inner.trim_matches(['-', '+']).trim() == word {
        // A scope of its own, and nothing else.
        let scope = if word == "generation" { "with" } else { "endwith" };
        return Ok(inner.replacen(word, scope, 1));
    }
    // A tag that no lexer can read is left to the parser.
    let Some(tokens) = tokens(inner) else { return Ok(inner.to_owned()) };
    if tokens.len() > TAG_TOKENS {
        return Err(format!("a tag has {} words and signs; {TAG_TOKENS} are the most", tokens.len()));
    }
    check_depth(&tokens)?;
    Ok(rewrite(inner, &tokens, word))
}

/// Refuses nesting deeper than a recursive parser's limit.
fn check_depth(tokens: &[Token<'_>]) -> Result<(), String> {
    let (mut brackets, mut signs, mut conditions) = (0_usize, 0_usize, 0_usize);
    for token in tokens {
        match token.text {
            "(" | "[" | "{" => brackets += 1,
            ")" | "]" | "}" => brackets = brackets.saturating_sub(1),
            "if" | "**" => conditions += 1,
            _ => {}
        }
        signs = if matches!(token.text, "not" | "-" | "+") { signs + 1 } else { 0 };
        if brackets > BRACKET_DEPTH || signs > BRACKET_DEPTH || conditions > 2 * BRACKET_DEPTH {
            return Err(format!("a tag has more than {BRACKET_DEPTH} brackets, signs or conditions in each other"));
        }
    }
    Ok(())
}
