//! Finds operators in a tag and replaces them with calls of functions with Python's semantics:
//! `a + b * c` becomes `__math(a,'+',__math(b,'*',c))`, `a ~ b` `__cat(a,b)`, `(a, b)`
//! `__tuple([a, b])`, and `a.items()` `__items(a)`.
//!
//! Everything else stays. So the later parser sees the same tags, and reports the same errors for
//! broken ones.

use super::token::{Kind, Token};

/// Methods of dicts that a key of the same name would hide.
const OF_DICTS: [&str; 4] = ["items", "keys", "values", "get"];

/// Words that are not values.
const KEYWORDS: [&str; 9] = ["and", "or", "not", "in", "is", "if", "else", "elif", "recursive"];

/// The body of a tag with its operators in their new form. `statement` is its first word, if it is
/// a statement.
pub(super) fn rewrite(body: &str, tokens: &[Token<'_>], statement: &str) -> String {
    let mut finder = Finder { tokens, at: 0, changes: Vec::new() };
    let after = |text: &str| tokens.iter().position(|token| token.text == text && token.kind != Kind::Text);
    finder.at = match statement {
        "" => 0,
        // Names of parameters, filters and targets are not values.
        "macro" | "block" | "filter" => 3,
        "call" if tokens.get(1).is_some_and(|token| token.text == "(") => after(")").unwrap_or(1),
        "for" => after("in").unwrap_or(1),
        "set" => after("=").map_or(1, |equals| equals + 1),
        _ => 1,
    }
    .min(tokens.len());
    finder.all(|_| false);
    if statement == "set" {
        finder.assignment();
    }
    finder.applied(body)
}

/// A change of the text: at a place, a number of bytes is replaced.
#[derive(Debug)]
struct Change {
    at: usize,
    /// Number of replaced bytes.
    gone: usize,
    text: String,
    /// Whether it opens something: of two at one place, the later one is the outer one.
    opens: bool,
}

struct Finder<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    changes: Vec<Change>,
}

/// Binding strength of operators, loosest first. Operators not listed are looser and stay.
const LEVELS: [&[&str]; 3] = [&["+", "-"], &["~"], &["*", "/", "//", "%"]];

impl<'a> Finder<'a> {
    fn peek(&self) -> Option<&'a Token<'a>> {
        self.tokens.get(self.at)
    }

    fn is(&self, text: &str) -> bool {
        self.peek().is_some_and(|token| token.text == text && token.kind != Kind::Text)
    }

    fn is_value(&self) -> bool {
        self.peek().is_some_and(|token| match token.kind {
            Kind::Name => !KEYWORDS.contains(&token.text),
            Kind::Text | Kind::Number => true,
            Kind::Sign => matches!(token.text, "(" | "[" | "{" | "-" | "+"),
        })
    }

    fn start(&self) -> usize {
        self.peek().map_or(usize::MAX, |token| token.start)
    }

    /// End of the token before this one.
    fn end(&self) -> usize {
        self.tokens[self.at - 1].end()
    }

    fn open(&mut self, at: usize, text: impl Into<String>) {
        self.changes.push(Change { at, gone: 0, text: text.into(), opens: true });
    }

    fn close(&mut self, at: usize, text: impl Into<String>) {
        self.changes.push(Change { at, gone: 0, text: text.into(), opens: false });
    }

    fn replace(&mut self, token: &Token<'_>, text: impl Into<String>) {
        self.changes.push(Change { at: token.start, gone: token.text.len(), text: text.into(), opens: false });
    }

    /// Reads values and everything between them, up to a token at which it ends.
    fn all(&mut self, ends: impl Fn(&Token<'_>) -> bool) {
        while let Some(token) = self.peek() {
            if token.kind == Kind::Sign && ends(token) {
                return;
            }
            if self.is_value() { self.operators(0) } else { self.at += 1 }
        }
    }

    /// Reads operands of this level or a tighter one, and the operators between them.
    fn operators(&mut self, level: usize) {
        let Some(signs) = LEVELS.get(level) else { return self.operand() };
        let start = self.start();
        self.operators(level + 1);
        let mut found = Vec::new();
        while let Some(token) = self.peek().filter(|token| token.kind == Kind::Sign && signs.contains(&token.text)) {
            self.at += 1;
            if !self.is_value() {
                return;
            }
            found.push(token);
            self.operators(level + 1);
        }
        if found.is_empty() {
            return;
        }
        self.open(start, if level == 1 { "__cat(" } else { "__math(" });
        for token in found {
            self.replace(token, if level == 1 { ",".to_owned() } else { format!(",'{}',", token.text) });
        }
        self.close(self.end(), ")");
    }

    /// Reads signs, a value, and everything bound to it: attributes, calls, filters, tests, powers.
    fn operand(&mut self) {
        while self.is("-") || self.is("+") {
            self.at += 1;
        }
        self.bound();
        while self.is("**") {
            self.at += 1;
            while self.is("-") || self.is("+") {
                self.at += 1;
            }
            self.bound();
        }
        while self.is("|") || self.is("is") {
            if self.is("|") { self.filter() } else { self.test() }
        }
    }

    /// Reads a value with its attributes, indexes and calls.
    fn bound(&mut self) {
        if !self.is_value() {
            return;
        }
        let start = self.start();
        let first = self.tokens[self.at];
        match (first.kind, first.text) {
            (Kind::Sign, "(") => self.parenthesis(),
            (Kind::Sign, _) => self.bracket(),
            (Kind::Number, text) => {
                self.at += 1;
                if let Some(decimal) = decimal(text) {
                    self.replace(&first, decimal);
                }
            }
            (Kind::Text, _) => {
                while self.peek().is_some_and(|token| token.kind == Kind::Text) {
                    self.at += 1;
                }
            }
            (Kind::Name, _) => self.at += 1,
        }
        loop {
            if self.is(".") {
                self.at += 1;
                let Some(name) = self.peek() else { return };
                self.at += 1;
                if OF_DICTS.contains(&name.text) && self.is("(") {
                    self.open(start, format!("__{}(", name.text));
                    let dot = self.tokens[self.at - 2];
                    let paren = self.tokens[self.at];
                    let gone = paren.end() - dot.start;
                    self.changes.push(Change { at: dot.start, gone, text: ",".into(), opens: false });
                    self.bracket();
                }
            } else if self.is("(") {
                self.bracket();
            } else if self.is("[") {
                self.index(start);
            } else {
                return;
            }
        }
    }

    /// Reads an index, or a slice: `a[b:c]` is `__slice(a,b,c)`.
    fn index(&mut self, start: usize) {
        let open = self.tokens[self.at];
        let mut colons = Vec::new();
        self.at += 1;
        let mut is_empty = true;
        while self.peek().is_some() {
            let before = self.at;
            self.all(|token| matches!(token.text, ")" | "]" | "}" | ":"));
            is_empty &= self.at == before;
            let Some(&sign) = self.peek() else { return };
            self.at += 1;
            if sign.text != ":" {
                break;
            }
            colons.push((sign, std::mem::replace(&mut is_empty, true)));
        }
        let close = self.tokens[self.at - 1];
        if colons.is_empty() || close.text != "]" {
            return;
        }
        self.open(start, "__slice(");
        self.replace(&open, ",");
        for (colon, is_empty) in colons {
            self.replace(&colon, if is_empty { "none," } else { "," });
        }
        self.replace(&close, if is_empty { "none)" } else { ")" });
    }

    /// Reads the contents of brackets.
    fn bracket(&mut self) {
        self.at += 1;
        self.all(|token| matches!(token.text, ")" | "]" | "}"));
        self.at = (self.at + 1).min(self.tokens.len());
    }

    /// Reads a value in parentheses: a tuple, if it has a comma or is empty.
    fn parenthesis(&mut self) {
        let open = self.tokens[self.at];
        self.at += 1;
        let mut is_tuple = self.is(")");
        while self.peek().is_some() {
            self.all(|token| matches!(token.text, ")" | "]" | "}" | ","));
            if !self.is(",") {
                break;
            }
            is_tuple = true;
            self.at += 1;
        }
        let Some(&close) = self.peek() else { return };
        self.at += 1;
        if is_tuple && close.text == ")" {
            self.open(open.start, "__tuple(");
            self.replace(&open, "[");
            self.replace(&close, "])");
        }
    }

    fn filter(&mut self) {
        self.at += 1;
        self.name();
        if self.is("(") {
            self.bracket();
        }
    }

    fn test(&mut self) {
        self.at += 1;
        if self.is("not") {
            self.at += 1;
        }
        if self.is("in") {
            self.at += 1;
        } else {
            self.name();
        }
        if self.is("(") {
            self.bracket();
        } else if self.is_value() && !self.is("-") && !self.is("+") {
            self.bound();
        }
    }

    /// Reads a name, dots included.
    fn name(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len());
        while self.is(".") {
            self.at = (self.at + 2).min(self.tokens.len());
        }
    }

    /// Makes a tuple of an assigned value that is several values without brackets. If a namespace
    /// is assigned to, its name counts as read too, so that macros can see it from outside.
    fn assignment(&mut self) {
        let Some(equals) = self.tokens.iter().position(|token| token.text == "=" && token.kind == Kind::Sign) else {
            return;
        };
        let (mut depth, mut commas) = (0_usize, false);
        for token in self.tokens[equals + 1..].iter().filter(|token| token.kind == Kind::Sign) {
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                "," if depth == 0 => commas = true,
                _ => {}
            }
        }
        let Some(last) = self.tokens.last().copied() else { return };
        // After all other changes at their places, so that they are the outermost.
        let first = self.tokens[equals].end();
        let namespace = self.tokens.get(1).filter(|_| self.tokens.get(2).is_some_and(|token| token.text == "."));
        if let Some(namespace) = namespace {
            self.close(first, format!(" __assigned({},", namespace.text));
        }
        if commas {
            self.close(first, " __tuple([");
            self.changes.push(Change { at: last.end(), gone: 0, text: "])".into(), opens: false });
        }
        if namespace.is_some() {
            self.changes.push(Change { at: last.end(), gone: 0, text: ")".into(), opens: false });
        }
    }

    /// The text with all changes.
    fn applied(mut self, body: &str) -> String {
        // The last opening is outermost and comes first; the first closing is innermost and comes
        // first.
        let mut order: Vec<(usize, u8, usize)> = Vec::new();
        let count = self.changes.len();
        for (index, change) in self.changes.iter().enumerate() {
            let rank = match change {
                Change { gone: 0, opens: false, .. } => 0,
                Change { opens: true, .. } => 1,
                _ => 2,
            };
            order.push((change.at, rank, if change.opens { count - index } else { index }));
        }
        let mut sorted: Vec<_> = self.changes.drain(..).zip(order).collect();
        sorted.sort_by_key(|(_, key)| *key);
        let (mut text, mut from) = (String::with_capacity(body.len() * 2), 0);
        for (change, _) in sorted {
            text.push_str(&body[from..change.at.max(from)]);
            text.push_str(&change.text);
            from = from.max(change.at + change.gone);
        }
        text + &body[from..]
    }
}

/// A number in another base as a decimal one.
fn decimal(text: &str) -> Option<String> {
    let digits = text.replace('_', "").to_ascii_lowercase();
    let (radix, digits) = match digits.get(..2)? {
        "0x" => (16, &digits[2..]),
        "0o" => (8, &digits[2..]),
        "0b" => (2, &digits[2..]),
        _ => return None,
    };
    Some(i128::from_str_radix(digits, radix).ok()?.to_string())
}
