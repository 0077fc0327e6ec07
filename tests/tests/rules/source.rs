//! Rust text as the rules read it: line by line, with comments and the contents of texts blanked,
//! and without tests.

use super::lines::BrokenLine;

/// A file's lines.
pub struct Source {
    /// As they are.
    pub whole: Vec<String>,
    /// Code without comments and without the contents of texts and characters.
    pub code: Vec<String>,
}

/// Whether a line of code is the end of a statement, of a block, or the beginning of one.
pub fn ends_statement(code: &str) -> bool {
    code.ends_with([';', '{', '}'])
}

impl Source {
    pub fn new(text: &str) -> Self {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        Self { whole: lines(text), code: lines(&blanked(text)) }
    }

    /// Lines of code that break a rule, which is asked with a line's index and its code.
    pub fn places(&self, breaks: impl Fn(usize, &str) -> bool) -> Vec<BrokenLine> {
        let numbered = self.code.iter().enumerate().filter(|(index, code)| breaks(*index, code));
        numbered.map(|(index, _)| BrokenLine { line: index + 1, text: self.whole[index].trim().to_owned() }).collect()
    }

    /// The same with the code of every item blanked that is compiled for tests only.
    pub fn without_tests(mut self) -> Self {
        let mut index = 0;
        while index < self.code.len() {
            let line = self.code[index].trim();
            let for_tests = line.starts_with("#[test]") || line.starts_with("#[cfg(test)]") || all_with_test(line);
            let end = if for_tests { self.item_end(index) } else { index };
            if for_tests {
                self.code[index..=end].iter_mut().for_each(String::clear);
            }
            index = end + 1;
        }
        self
    }

    /// The last line of the item that begins on a line with its attributes: where its braces close,
    /// or its semicolon.
    fn item_end(&self, first: usize) -> usize {
        let mut depth = 0usize;
        for (index, line) in self.code.iter().enumerate().skip(first) {
            for character in line.chars() {
                match character {
                    '{' | '(' | '[' => depth += 1,
                    '}' | ')' | ']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                if depth == 0 && (character == '}' || character == ';') {
                    return index;
                }
            }
        }
        self.code.len() - 1
    }
}

/// `#[cfg(all(test, ..))]`.
fn all_with_test(line: &str) -> bool {
    let inside = line.strip_prefix("#[cfg(all(").and_then(|rest| rest.split("))]").next());
    inside.is_some_and(|inside| inside.split(',').any(|part| part.trim() == "test"))
}

/// The text with a space for every character of a comment, of a text between quotes, and of a
/// character literal; lines stay where they are.
fn blanked(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < characters.len() {
        let length = match skipped(&characters[at..], characters[..at].last().copied()) {
            0 => {
                out.push(characters[at]);
                at += 1;
                continue;
            }
            length => length.min(characters.len() - at),
        };
        out.extend(characters[at..at + length].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at += length;
    }
    out
}

/// Number of characters from here on that are a comment or a literal; 0 where code goes on.
fn skipped(rest: &[char], before: Option<char>) -> usize {
    let starts = |text: &str| text.chars().enumerate().all(|(i, c)| rest.get(i) == Some(&c));
    let until = |from: usize, end: &str| {
        let end: Vec<char> = end.chars().collect();
        (from..rest.len()).find(|&i| rest[i..].starts_with(&end)).map_or(rest.len(), |i| i + end.len())
    };
    if starts("//") {
        return rest.iter().position(|&c| c == '\n').unwrap_or(rest.len());
    }
    if starts("/*") {
        return until(2, "*/");
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if !in_word && (starts("r\"") || starts("r#") || starts("br\"") || starts("br#")) {
        let from = if rest[0] == 'b' { 2 } else { 1 };
        let hashes = rest[from..].iter().take_while(|&&c| c == '#').count();
        if rest.get(from + hashes) == Some(&'"') {
            return until(from + hashes + 1, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    if starts("\"") {
        return quoted(rest, '"');
    }
    // A character, not a lifetime: it closes after one character or after an escape.
    if starts("'\\") || (rest.first() == Some(&'\'') && rest.get(2) == Some(&'\'')) {
        return quoted(rest, '\'');
    }
    0
}

/// The length of a literal with its quotes; a backslash takes the next character with it.
fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}
