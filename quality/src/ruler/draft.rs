//! A request of the suite before its context is cut into chunks, and the lines of contexts.

use crate::cut::Run;

/// A request before its context is cut into chunks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    /// Text before the context.
    pub lead: String,
    /// The context.
    pub runs: Vec<Run>,
    /// Text after the context.
    pub query: String,
    /// Beginning of the answer.
    pub begun: String,
    /// References of a right answer.
    pub references: Vec<String>,
}

/// The noise of RULER, a line of it.
pub(super) const NOISE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// Lines as runs: each ends with its line break, but for the last one. Lines that are to be found
/// are never cut.
pub(super) fn lines(lines: Vec<(String, bool)>) -> Vec<Run> {
    let last = lines.len().saturating_sub(1);
    let line = |(index, (text, is_whole)): (usize, (String, bool))| {
        let text = if index < last { text + "\n" } else { text };
        if is_whole { Run::whole(text) } else { Run::new(text) }
    };
    lines.into_iter().enumerate().map(line).collect()
}
