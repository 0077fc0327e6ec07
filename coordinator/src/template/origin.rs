//! Origins of the parts of a rendered conversation.
//!
//! The template renders the real texts, since it may read, trim or cut them. To find them again it
//! renders them a second time with marks inside: characters that no text has. If both renderings
//! are the same but for the marks, every mark gives the text and the character at its place. The
//! part that agrees with that text on both sides of the mark is that text.
//! If they differ, because the template inspected the marked characters, texts are searched for,
//! and those without a certain place are named.

use std::ops::Range;

use serde_json::Value;

/// Private-use characters that serve as marks: two blocks of them.
const BLOCKS: [Range<u32>; 2] = [0x10_0000..0x10_FFFE, 0xF_0000..0xF_FFFE];

/// Maximum marks of a text: near its beginning, in its middle, near its end.
const MARKS: usize = 3;

/// Characters between a text's ends and the marks near them: a template that inspects a text's
/// beginning finds it intact.
const MARGIN: usize = 24;

/// A part of a rendering that stands for a part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Bytes of the rendering.
    pub(super) at: Range<usize>,
    /// Number of the text.
    pub(super) text: usize,
    /// First byte in the text.
    pub(super) from: usize,
}

/// Places of texts in a rendering.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Origins {
    /// Segments in the order of the rendering.
    pub(super) segments: Vec<Segment>,
    /// Texts that may also be at other places.
    pub(super) unsure: Vec<usize>,
}

/// Calls a function for every text of messages but their roles, in a fixed order.
pub(super) fn each_text(messages: &mut [Value], change: &mut impl FnMut(&mut String)) {
    fn within(value: &mut Value, change: &mut impl FnMut(&mut String)) {
        match value {
            Value::String(text) => change(text),
            Value::Array(values) => values.iter_mut().for_each(|value| within(value, change)),
            Value::Object(values) => values.values_mut().for_each(|value| within(value, change)),
            _ => {}
        }
    }
    for message in messages {
        for (key, value) in message.as_object_mut().into_iter().flatten() {
            if key != "role" {
                within(value, change);
            }
        }
    }
}

/// Places of the texts of messages in their rendering. `render` renders messages; `None` if it
/// fails.
pub(super) fn origins(rendered: &str, messages: &[Value], render: impl Fn(&[Value]) -> Option<String>) -> Origins {
    let mut messages = messages.to_vec();
    let mut texts = Vec::new();
    each_text(&mut messages, &mut |text| texts.push(text.clone()));
    let marked = Marks::unused_in(&texts, rendered).and_then(|marks| {
        let mut index = 0;
        each_text(&mut messages, &mut |text| {
            *text = marks.put_into(text, index);
            index += 1;
        });
        let (plain, found) = marks.taken_from(&render(&messages)?, &texts);
        (plain == rendered).then(|| segments(rendered, &texts, &found))
    });
    match marked {
        Some(segments) => Origins { segments, unsure: Vec::new() },
        None => searched(rendered, &texts),
    }
}

/// The marks of a rendering: a block of characters that no text contains.
struct Marks(Range<u32>);

impl Marks {
    fn unused_in(texts: &[String], rendered: &str) -> Option<Self> {
        let is_free = |block: &Range<u32>| {
            let has = |text: &str| text.chars().any(|letter| block.contains(&u32::from(letter)));
            !texts.iter().any(|text| has(text)) && !has(rendered)
        };
        BLOCKS.into_iter().find(is_free).map(Self)
    }

    fn mark(&self, text: usize, slot: usize) -> Option<char> {
        let code = u32::try_from(text * MARKS + slot).ok()?.checked_add(self.0.start)?;
        char::from_u32(code).filter(|_| self.0.contains(&code))
    }

    /// A text with its marks. Space at its ends stays at its ends.
    fn put_into(&self, text: &str, index: usize) -> String {
        let (mut marked, mut from) = (String::with_capacity(text.len() + 4 * MARKS), 0);
        for (slot, place) in places(text).into_iter().enumerate() {
            let Some(mark) = self.mark(index, slot) else { break };
            marked.push_str(&text[from..place]);
            marked.push(mark);
            from = place;
        }
        marked + &text[from..]
    }

    /// A rendering without its marks, and for each mark its place, its text, and its place in the
    /// text.
    fn taken_from(&self, marked: &str, texts: &[String]) -> (String, Vec<(usize, usize, usize)>) {
        let (mut plain, mut found) = (String::with_capacity(marked.len()), Vec::new());
        for letter in marked.chars() {
            let code = u32::from(letter);
            if !self.0.contains(&code) {
                plain.push(letter);
                continue;
            }
            let number = (code - self.0.start) as usize;
            let text = number / MARKS;
            let place = texts.get(text).and_then(|text| places(text).get(number % MARKS).copied());
            found.extend(place.map(|place| (plain.len(), text, place)));
        }
        (plain, found)
    }
}

/// Bytes of a text before which its marks are inserted.
fn places(text: &str) -> Vec<usize> {
    let core = text.trim();
    if core.is_empty() {
        return Vec::new();
    }
    let start = text.len() - text.trim_start().len();
    let margin = MARGIN.min(core.len() / 3);
    let mut places = vec![margin, core.len() / 2, core.len() - margin];
    places.iter_mut().for_each(|place| *place = start + outside_of_tags(core, core.floor_char_boundary(*place)));
    places.dedup();
    places
}

/// A place near this one that is not within a tag such as `</think>`, at which templates cut texts.
fn outside_of_tags(text: &str, place: usize) -> usize {
    let near = |length: usize| length < 2 * MARGIN;
    let opened = text[..place].rfind('<').filter(|&open| near(place - open) && !text[open..place].contains('>'));
    let closed = text[place..].find('>').filter(|&close| near(close));
    match (opened, closed) {
        (Some(_), Some(close)) => place + close + 1,
        _ => place,
    }
}

/// Parts that agree with a text around its marks.
fn segments(rendered: &str, texts: &[String], found: &[(usize, usize, usize)]) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for &(at, text, place) in found {
        let is_known =
            |last: &Segment| last.text == text && last.at.end >= at && last.from + (at - last.at.start) == place;
        if segments.last().is_some_and(is_known) {
            continue;
        }
        let content = &texts[text];
        let same = |a: &(u8, u8)| a.0 == a.1;
        let floor = segments.last().map_or(0, |last| last.at.end);
        let before = rendered.as_bytes()[floor..at].iter().rev().zip(content.as_bytes()[..place].iter().rev());
        let before = before.map(|(a, b)| (*a, *b)).take_while(same).count();
        let after = rendered.as_bytes()[at..].iter().zip(&content.as_bytes()[place..]);
        let after = after.map(|(a, b)| (*a, *b)).take_while(same).count();
        // Multi-byte characters can agree in a part of them.
        let (mut start, mut end) = (rendered.ceil_char_boundary(at - before), rendered.floor_char_boundary(at + after));
        // At a cut of the template, its own mark may end, or begin, with the same characters: it
        // stays whole.
        if before < place - (content.len() - content.trim_start().len()) {
            start = start_outside_of_tags(rendered, start..at);
        }
        if place + after < content.trim_end().len() {
            end = end_outside_of_tags(rendered, at..end);
        }
        segments.push(Segment { at: start..end, text, from: place - (at - start) });
    }
    segments
}

/// The first place of a range that is not within a tag which begins before it.
fn start_outside_of_tags(text: &str, range: Range<usize>) -> usize {
    let before = &text[..range.start];
    let is_open =
        before.rfind('<').is_some_and(|open| before.len() - open < 2 * MARGIN && !before[open..].contains('>'));
    match text[range.clone()].find('>') {
        Some(close) if is_open => range.start + close + 1,
        _ => range.start,
    }
}

/// The last place of a range that is not within a tag which ends after it.
fn end_outside_of_tags(text: &str, range: Range<usize>) -> usize {
    let after = &text[range.end..];
    let closes = after.find('>').is_some_and(|close| close < 2 * MARGIN && !after[..close].contains('<'));
    match text[range.clone()].rfind('<') {
        Some(open) if closes && !text[range.start + open..range.end].contains('>') => range.start + open,
        _ => range.end,
    }
}

/// Texts found in a rendering one after the other. None of them is certain.
fn searched(rendered: &str, texts: &[String]) -> Origins {
    let (mut segments, mut from) = (Vec::new(), 0);
    for (text, content) in texts.iter().enumerate() {
        let core = content.trim();
        if core.is_empty() {
            continue;
        }
        if let Some(at) = rendered[from..].find(core) {
            let start = from + at;
            from = start + core.len();
            segments.push(Segment { at: start..from, text, from: content.len() - content.trim_start().len() });
        }
    }
    Origins { segments, unsure: (0..texts.len()).collect() }
}
