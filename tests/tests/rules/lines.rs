//! Rules over one text, line by line: a manifest, a source file or a document.

use super::source::{Source, ends_statement};

/// A place that breaks a rule: the line's number, from 1, and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenLine {
    /// Number of the line.
    pub line: usize,
    /// Text of the line.
    pub text: String,
}

/// A row of a table with another number of cells than the table's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnevenRow {
    /// Number of the line, from 1.
    pub line: usize,
    /// Cells of the row.
    pub cells: usize,
    /// Cells of the head.
    pub head: usize,
}

/// The crates of this workspace that a manifest's program needs: those for its own tests do not
/// count.
pub fn workspace_dependencies(manifest: &str) -> Vec<String> {
    dependencies(manifest, "tributary")
}

/// The crates whose names begin so that a manifest's program needs: those for its own tests do not
/// count.
pub fn dependencies(manifest: &str, beginning: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            // `[dependencies]`, `[build-dependencies]`, `[target.'cfg(unix)'.dependencies]`.
            let whole = |name: &str| name.ends_with("dependencies") && !name.ends_with("dev-dependencies");
            inside = whole(section);
            // `[dependencies.tributary-worker]`.
            if let Some((before, name)) = section.rsplit_once('.')
                && whole(before)
                && name.starts_with(beginning)
            {
                found.push(name.to_owned());
            }
        } else if inside && !line.starts_with('#') {
            // A crate may be renamed: `other = { package = "tributary-worker" }`.
            let name =
                |at: usize| line[at..].split(|c: char| !c.is_alphanumeric() && c != '-').next().unwrap_or_default();
            found.extend(line.find(beginning).map(|at| name(at).to_owned()));
        }
    }
    found
}

/// Lines that ask for a feature of the build, in an attribute or in an expression.
pub fn features(text: &str) -> Vec<BrokenLine> {
    let source = Source::new(text);
    let asks = |index: usize, line: &str| {
        line.match_indices("feature").any(|(at, word)| {
            let alone = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let here = std::iter::once(&line[at + word.len()..]);
            let mut rest = here.chain(source.code[index + 1..].iter().map(String::as_str)).map(str::trim_start);
            alone && rest.find(|rest| !rest.is_empty()).is_some_and(|rest| rest.starts_with('='))
        })
    };
    source.places(asks)
}

/// Lines outside tests that unwrap.
pub fn unwraps(text: &str) -> Vec<BrokenLine> {
    Source::new(text).without_tests().places(|_, line| line.contains(".unwrap()") || line.contains("::unwrap)"))
}

/// Lines that ask for a method by its name.
pub fn named_methods(text: &str) -> Vec<BrokenLine> {
    const ASKING: [&str; 6] =
        ["Method::find(", "Method::named(", ".name == ", ".name != ", ".name() == ", ".name() != "];
    let source = Source::new(text).without_tests();
    let asks = |index: usize, code: &str| {
        let is_literal = |asking: &&str| source.whole[index].contains(&format!("{asking}\""));
        ASKING.iter().filter(|asking| code.contains(asking.trim_end())).any(is_literal)
    };
    source.places(asks)
}

/// Lines with an `unsafe` block or implementation.
pub fn unsafe_code(text: &str) -> Vec<BrokenLine> {
    Source::new(text).places(|_, line| is_unsafe(line))
}

/// Those of [`unsafe_code`] whose statement has no `// SAFETY:` right above it.
pub fn unsafe_without_reason(text: &str) -> Vec<BrokenLine> {
    let source = Source::new(text);
    let has_reason = |place: &BrokenLine| {
        for index in (0..place.line - 1).rev() {
            let (whole, code) = (source.whole[index].trim(), source.code[index].trim());
            if whole.starts_with("//") {
                // The comment right above the statement: all its lines.
                let comment = source.whole[..=index].iter().rev().map(|line| line.trim());
                return comment.take_while(|line| line.starts_with("//")).any(|line| line.starts_with("// SAFETY:"));
            }
            if ends_statement(code) {
                return false;
            }
        }
        false
    };
    let reason_beside = |place: &BrokenLine| source.whole[place.line - 1].contains("// SAFETY:");
    source
        .places(|_, line| is_unsafe(line))
        .into_iter()
        .filter(|place| !has_reason(place) && !reason_beside(place))
        .collect()
}

/// Lines that declare a type safe to send or share against the compiler's judgement.
pub fn sends(text: &str) -> Vec<BrokenLine> {
    let of = |line: &str, name: &str| line.split_whitespace().any(|word| word == name);
    Source::new(text).places(|_, line| line.contains("unsafe impl") && (of(line, "Send") || of(line, "Sync")))
}

fn is_unsafe(line: &str) -> bool {
    line.match_indices("unsafe").any(|(at, word)| {
        let alone = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let next = line[at + word.len()..].trim_start();
        alone && (next.is_empty() || next.starts_with('{') || next.starts_with("impl"))
    })
}

/// Lines of tests that skip silently: an `#[ignore]` without a reason, and a skip whose message the
/// test harness captures.
pub fn silent_skips(text: &str) -> Vec<BrokenLine> {
    let source = Source::new(text);
    source.places(|index, line| {
        let printed = line.contains("println!(") && source.whole[index].to_lowercase().contains("skipped");
        printed || line.contains("#[ignore]")
    })
}

/// Lines outside tests that read the operating system's own files. The program's own file is none
/// of them.
pub fn system_files(text: &str) -> Vec<BrokenLine> {
    let source = Source::new(text).without_tests();
    source.places(|index, code| {
        let shown = source.whole[index].replace("\"/proc/self/exe\"", "");
        // Of lines that are tests or comments altogether, no code is left.
        !code.trim().is_empty() && ["\"/proc", "\"/sys/fs/cgroup"].iter().any(|folder| shown.contains(folder))
    })
}

/// Files that a document names in backquotes.
pub fn named_files(document: &str) -> Vec<&str> {
    let is_file = |name: &&str| {
        let ends = ["rs", "md", "toml", "json", "safetensors", "py", "sh", "cu", "cuh"];
        let known = ends.iter().any(|end| name.ends_with(&format!(".{end}")));
        known && name.contains('/') && !name.contains([' ', '<', '*', '$', '{'])
    };
    document.split('`').skip(1).step_by(2).filter(is_file).collect()
}

/// Rows of a document's tables with another number of cells than the head of their table. A row of
/// dashes below the head begins a table; an empty line, a heading or a fence ends it. Text inside a
/// fence is no table.
pub fn uneven_rows(document: &str) -> Vec<UnevenRow> {
    let mut found = Vec::new();
    let (mut head, mut above, mut fenced) = (None, "", false);
    for (index, line) in document.lines().map(str::trim).enumerate() {
        fenced ^= line.starts_with("```") || line.starts_with("~~~");
        if fenced || line.is_empty() || line.starts_with('#') {
            head = None;
        } else if head.is_none() && is_dashes(line) {
            head = Some(cells(above));
        }
        if let Some(head) = head
            && cells(line) != head
        {
            found.push(UnevenRow { line: index + 1, cells: cells(line), head });
        }
        above = line;
    }
    found
}

/// Whether a line is the row of dashes between a table's head and its body.
fn is_dashes(line: &str) -> bool {
    line.starts_with('|') && line.contains('-') && line.chars().all(|letter| "|-: ".contains(letter))
}

/// Number of a row's cells. A bar after a backslash or in backquotes is text.
fn cells(row: &str) -> usize {
    let row = row.strip_prefix('|').unwrap_or(row);
    let (mut bars, mut closed, mut escaped, mut quoted) = (0, false, false, false);
    for letter in row.chars() {
        closed = letter == '|' && !escaped && !quoted;
        bars += usize::from(closed);
        // In backquotes a backslash is a letter.
        quoted ^= letter == '`' && (quoted || !escaped);
        escaped = letter == '\\' && !escaped;
    }
    // A row may end without a bar.
    if closed { bars } else { bars + 1 }
}
