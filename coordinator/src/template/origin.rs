//! Where the words of a rendered conversation come from.
//!
//! The template renders the real texts, since it may read, trim or cut them. To find them again it renders them a second time with
//! marks inside: letters that no text has. Where both renderings are the same but for the marks, every mark says which letter of which
//! text stands there, and what agrees with the text on both sides of it is that text. Where they differ, because the template looked at
//! the marked letters, texts are searched for, and those not found for certain are named.

use std::ops::Range;

use serde_json::Value;

/// Letters for private use that serve as marks: two blocks of them.
const BLOCKS: [Range<u32>; 2] = [0x10_0000..0x10_FFFE, 0xF_0000..0xF_FFFE];

/// Marks of a text at most: near its beginning, in its middle, near its end.
const MARKS: usize = 3;

/// Letters between a text's ends and the marks near them: a template that looks at how a text begins finds what is there.
const MARGIN: usize = 24;

/// A part of a rendering that stands for a part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Bytes of the rendering.
    pub(super) at: Range<usize>,
    /// Which text.
    pub(super) text: usize,
    /// The byte of the text that it begins with.
    pub(super) from: usize,
}

/// Where texts stand in a rendering.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Origins {
    /// In the order of the rendering.
    pub(super) segments: Vec<Segment>,
    /// Texts that may stand elsewhere too.
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

/// Where the texts of messages stand in their rendering. `render` renders messages; none where it fails.
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

/// The marks of a rendering: a block of letters that stands in no text.
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

    /// A rendering without its marks, and for each mark where it stood, its text, and its place there.
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

/// The bytes of a text before which its marks stand.
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

/// What agrees with a text around its marks.
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
        let behind = rendered.as_bytes()[at..].iter().zip(&content.as_bytes()[place..]);
        let behind = behind.map(|(a, b)| (*a, *b)).take_while(same).count();
        // Letters of several bytes can agree in a part of them.
        let (mut start, mut end) =
            (rendered.ceil_char_boundary(at - before), rendered.floor_char_boundary(at + behind));
        // Where the template has cut the text, its own mark may end, or begin, with the same letters: it stays whole.
        if before < place - (content.len() - content.trim_start().len()) {
            start = start_outside_of_tags(rendered, start..at);
        }
        if place + behind < content.trim_end().len() {
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

/// The last place of a range that is not within a tag which ends behind it.
fn end_outside_of_tags(text: &str, range: Range<usize>) -> usize {
    let behind = &text[range.end..];
    let closes = behind.find('>').is_some_and(|close| close < 2 * MARGIN && !behind[..close].contains('<'));
    match text[range.clone()].rfind('<') {
        Some(open) if closes && !text[range.start + open..range.end].contains('>') => range.start + open,
        _ => range.end,
    }
}

/// Texts as far as they stand in a rendering one after the other. None of them is certain.
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
