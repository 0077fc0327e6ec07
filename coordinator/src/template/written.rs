//! A rendered conversation, with the author of each part, and the place of the documents.

use std::ops::Range;

use super::origin::{Origins, Segment};

/// A template's rendering of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// The whole text, documents included.
    pub text: String,
    /// The parts of it that are the user's, in their order.
    pub by_user: Vec<Range<usize>>,
    /// Place of the documents in it; absent unless they appear once and whole.
    pub documents: Option<Placed>,
    /// Texts of the user that may also be at other places.
    pub unsure: Vec<String>,
    /// Whether the system text is in the first message, because the template takes no system
    /// message.
    pub system_in_user: bool,
}

/// Place of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Bytes of the rendering.
    pub at: Range<usize>,
    /// Bytes of the text itself: without the space that the template removed from its ends.
    pub of: Range<usize>,
}

/// A part of a prompt, by its author.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPart<'a> {
    /// Text of the chat template: its marks count.
    Template(&'a str),
    /// Text of the user: its marks are plain text.
    User(&'a str),
}

/// The same with a text of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedPart {
    text: String,
    is_users: bool,
}

impl From<&PromptPart<'_>> for OwnedPart {
    fn from(part: &PromptPart<'_>) -> Self {
        Self { text: part.text().to_owned(), is_users: matches!(part, PromptPart::User(_)) }
    }
}

impl OwnedPart {
    /// The part.
    pub fn part(&self) -> PromptPart<'_> {
        if self.is_users { PromptPart::User(&self.text) } else { PromptPart::Template(&self.text) }
    }

    /// Whether the user has written it.
    pub fn is_users(&self) -> bool {
        self.is_users
    }
}

impl PromptPart<'_> {
    /// The text.
    pub fn text(&self) -> &str {
        match self {
            PromptPart::Template(text) | PromptPart::User(text) => text,
        }
    }
}

impl Written {
    /// From a rendering, the places of texts in it, and the part of a text that is the documents.
    pub(super) fn new(text: String, origins: &Origins, texts: &[String], documents: (usize, Range<usize>)) -> Self {
        let by_user = origins.segments.iter().map(|segment| segment.at.clone()).collect();
        let documents = placed(origins, texts, documents);
        let unsure = origins.unsure.iter().map(|&text| texts[text].clone()).collect();
        Self { text, by_user, documents, unsure, system_in_user: false }
    }

    /// A part of the text by its author.
    pub fn parts(&self, range: Range<usize>) -> Vec<PromptPart<'_>> {
        let (mut parts, mut from) = (Vec::new(), range.start);
        for part in &self.by_user {
            let (start, end) = (part.start.max(from), part.end.min(range.end));
            if start >= end {
                continue;
            }
            if start > from {
                parts.push(PromptPart::Template(&self.text[from..start]));
            }
            parts.push(PromptPart::User(&self.text[start..end]));
            from = end;
        }
        if from < range.end {
            parts.push(PromptPart::Template(&self.text[from..range.end]));
        }
        parts
    }

    /// The same with every occurrence of these marks attributed to the user, if it is in a text of
    /// uncertain place.
    #[must_use]
    pub fn with_marks_of_the_user(mut self, marks: &[String]) -> Self {
        let doubtful = marks.iter().filter(|mark| self.unsure.iter().any(|text| text.contains(mark.as_str())));
        let more: Vec<Range<usize>> = doubtful
            .flat_map(|mark| self.text.match_indices(mark.as_str()).map(|(at, mark)| at..at + mark.len()))
            .collect();
        self.by_user.extend(more);
        self.by_user.sort_by_key(|part| (part.start, part.end));
        self
    }
}

/// Place of the documents, if they appear once and whole except for space at their ends.
fn placed(origins: &Origins, texts: &[String], (text, documents): (usize, Range<usize>)) -> Option<Placed> {
    let content = texts.get(text)?.get(documents.clone())?;
    let core_start = documents.start + (content.len() - content.trim_start().len());
    let core_end = documents.start + content.trim_end().len();
    let length = |segment: &Segment| segment.at.end - segment.at.start;
    if content.is_empty() {
        let found = origins.segments.iter().find(|segment| segment.text == text)?;
        let at = found.at.start + documents.start.saturating_sub(found.from).min(length(found));
        return Some(Placed { at: at..at, of: 0..0 });
    }
    let mut holding = origins.segments.iter().filter(|segment| {
        let of = segment.from..segment.from + length(segment);
        segment.text == text && of.start < core_end && core_start < of.end
    });
    let (found, None) = (holding.next()?, holding.next()) else { return None };
    let of = found.from.max(documents.start)..(found.from + length(found)).min(documents.end);
    if of.start > core_start || of.end < core_end {
        return None;
    }
    let at = found.at.start + (of.start - found.from);
    let (at, of) = (at..at + (of.end - of.start), of.start - documents.start..of.end - documents.start);
    Some(Placed { at, of })
}
