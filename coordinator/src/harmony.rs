//! OpenAI's Harmony format, in which gpt-oss answers (OpenAI 2025, "OpenAI Harmony Response
//! Format"). An answer is several messages: `<|start|>assistant<|channel|>analysis<|message|>` and
//! a text up to `<|end|>`, then the same with the channel `final`, up to `<|return|>`.
//!
//! Marks are tokens: the same characters, written as other tokens, are text. A header is never
//! shown, and stop texts are not looked for in it.

use std::sync::Arc;

/// The mark whose presence in a chat template tells that its model answers in this format.
pub const CHANNEL: &str = "<|channel|>";

/// Marks that a tokenizer must have, and then those that it may have.
const NEEDED: [(&str, Mark); 4] =
    [("<|start|>", Mark::Start), (CHANNEL, Mark::Channel), ("<|message|>", Mark::Message), ("<|end|>", Mark::End)];
const OTHERS: [(&str, Mark); 3] =
    [("<|constrain|>", Mark::Constrain), ("<|return|>", Mark::End), ("<|call|>", Mark::End)];

/// A token between texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Begins a header: the role follows.
    Start,
    /// Begins the name of the channel, in a header.
    Channel,
    /// Begins the name of the text's format, in a header.
    Constrain,
    /// Ends a header: the text follows.
    Message,
    /// Ends the text.
    End,
}

/// The marks of a tokenizer by their ids.
#[derive(Debug, Clone)]
pub struct Marks(Arc<[(u32, Mark)]>);

impl Marks {
    /// The marks of a tokenizer by its ids of texts, or the text of one that it needs and does not
    /// have.
    ///
    /// # Errors
    /// Returns that text.
    pub fn with(id: impl Fn(&str) -> Option<u32>) -> Result<Self, &'static str> {
        let needed = NEEDED.into_iter().map(|(text, mark)| Ok((id(text).ok_or(text)?, mark)));
        let others = OTHERS.into_iter().filter_map(|(text, mark)| Some(Ok((id(text)?, mark))));
        needed.chain(others).collect::<Result<_, _>>().map(Self)
    }

    fn find(&self, token: u32) -> Option<Mark> {
        self.0.iter().find(|(id, _)| *id == token).map(|(_, mark)| *mark)
    }
}

/// Characters that begin the text of a message for [`Channels`]. Unicode assigns them to no
/// character, and [`Headers`] takes them out of a model's own text.
const REASONING: char = '\u{fdd0}';
const ANSWER: char = '\u{fdd1}';

/// Reads marks and headers, token by token, and leaves the texts of messages.
#[derive(Debug)]
pub struct Headers {
    marks: Marks,
    state: State,
    /// The character that precedes the next text.
    begins: Option<char>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Between two messages.
    Between,
    /// In a header.
    Header {
        /// Text before the channel: the role, and the recipient if there is one.
        role: String,
        /// Text from the channel's mark on.
        channel: Option<String>,
        /// Whether the prompt began it: the role has been left out then.
        is_open: bool,
    },
    /// In the text of a message.
    Text,
}

impl Headers {
    /// State after a prompt that ends with these tokens: a template ends with the beginning of a
    /// header, or within a message that is to be continued. Without a mark they are an answer.
    pub fn behind(prompt: &[u32], marks: Marks, text_of: impl Fn(&[u32]) -> String) -> Self {
        let mut this = Self { marks: marks.clone(), state: State::Text, begins: Some(ANSWER) };
        let is_mark = |id: &u32| marks.find(*id).is_some();
        for text in prompt.chunk_by(|before, after| !is_mark(before) && !is_mark(after)) {
            match marks.find(text[0]) {
                Some(mark) => this.mark(mark),
                None => _ = this.within_header(&text_of(text)),
            }
        }
        if let State::Header { role, is_open, .. } = &mut this.state {
            (*is_open, *role) = (true, String::new());
        }
        this
    }

    /// Whether a token is a mark.
    pub fn is_mark(&self, token: u32) -> bool {
        self.marks.find(token).is_some()
    }

    /// Takes a mark.
    pub fn take(&mut self, token: u32) {
        self.marks.find(token).into_iter().for_each(|mark| self.mark(mark));
    }

    /// Takes a text; leaves nothing of a header.
    pub fn text(&mut self, text: &str) -> String {
        if text.is_empty() || self.within_header(text) {
            return String::new();
        }
        match &mut self.state {
            // A model that writes no header answers at once.
            State::Header { role, .. } => {
                let text = std::mem::take(role);
                (self.state, self.begins) = (State::Text, Some(ANSWER));
                self.told(&text)
            }
            State::Between if text.trim().is_empty() => String::new(),
            State::Between => {
                (self.state, self.begins) = (State::Text, Some(ANSWER));
                self.told(text)
            }
            State::Text => self.told(text),
        }
    }

    /// The rest at the end: text that might have become a header.
    pub fn rest(&mut self) -> String {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Header { role, channel: None, is_open: true } if !role.is_empty() => {
                self.begins = Some(ANSWER);
                self.told(&role)
            }
            _ => String::new(),
        }
    }

    fn told(&mut self, text: &str) -> String {
        let text = text.replace([REASONING, ANSWER], "\u{fffd}");
        self.begins.take().into_iter().collect::<String>() + &text
    }

    /// Whether a text belongs to a header; if it does, or may do so, the header has it.
    fn within_header(&mut self, text: &str) -> bool {
        let State::Header { role, channel, is_open } = &mut self.state else { return false };
        channel.as_mut().unwrap_or(role).push_str(text);
        // After a role only a recipient may follow.
        let follows = role.trim_start();
        !*is_open || channel.is_some() || follows.starts_with(TO) || TO.starts_with(follows)
    }

    fn mark(&mut self, mark: Mark) {
        match (mark, &mut self.state) {
            (Mark::Start, _) => {
                self.state = State::Header { role: String::new(), channel: None, is_open: false };
            }
            (Mark::Channel, State::Header { channel, .. }) => *channel = Some(String::new()),
            (Mark::Channel, _) => {
                self.state = State::Header { role: String::new(), channel: Some(String::new()), is_open: false };
            }
            (Mark::Constrain, State::Header { channel, .. }) => {
                channel.iter_mut().for_each(|channel| channel.push(' '));
            }
            (Mark::Constrain, _) => {}
            (Mark::Message, State::Header { role, channel, .. }) => {
                self.begins = Some(kind(role, channel.as_deref()));
                self.state = State::Text;
            }
            (Mark::Message, _) => (self.state, self.begins) = (State::Text, Some(ANSWER)),
            (Mark::End, _) => self.state = State::Between,
        }
    }
}

const TO: &str = "to=";

/// The character that begins the text of a message. As in vLLM and SGLang a message of the channel
/// `commentary` without a recipient is for the user: the format calls it a preamble. A message to
/// a tool is reasoning, since requests with tools are refused.
fn kind(role: &str, channel: Option<&str>) -> char {
    let mut words = channel.unwrap_or_default().split_whitespace();
    let name = words.next();
    let has_recipient = role.split_whitespace().chain(words).any(|word| word.starts_with(TO));
    match name {
        Some("final" | "commentary") | None if !has_recipient => ANSWER,
        _ => REASONING,
    }
}

/// Separates the texts of messages that [`Headers`] leaves.
#[derive(Debug)]
pub struct Channels {
    /// Whether reasoning comes apart; else it precedes the answer.
    is_apart: bool,
    /// Whether the text is reasoning.
    reasons: bool,
    /// Whether there has been an answer, and whether there has been reasoning apart.
    has: [bool; 2],
}

impl Channels {
    /// No text has come.
    pub fn new(is_apart: bool) -> Self {
        Self { is_apart, reasons: false, has: [false; 2] }
    }

    /// The reasoning and the answer in a text. Messages are separated by a line break.
    pub fn push(&mut self, text: &str) -> (String, String) {
        let mut told = [String::new(), String::new()];
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find([REASONING, ANSWER]).unwrap_or(rest.len());
            let place = usize::from(self.reasons && self.is_apart);
            told[place].push_str(&rest[..end]);
            self.has[place] |= end > 0;
            let mut after = rest[end..].chars();
            if let Some(begins) = after.next() {
                self.reasons = begins == REASONING;
                let place = usize::from(self.reasons && self.is_apart);
                told[place].extend(self.has[place].then_some('\n'));
            }
            rest = after.as_str();
        }
        let [answer, reasoning] = told;
        (reasoning, answer)
    }
}

/// The reasoning and the answer in all tokens of an answer, which come after those of a prompt.
pub fn parted(prompt: &[u32], answer: &[u32], marks: &Marks, text_of: impl Fn(&[u32]) -> String) -> (String, String) {
    let mut headers = Headers::behind(prompt, marks.clone(), &text_of);
    let (mut channels, mut whole) = (Channels::new(true), (String::new(), String::new()));
    let mut tell = |text: &str| {
        let (reasoning, answer) = channels.push(text);
        (whole.0 += &reasoning, whole.1 += &answer)
    };
    for text in answer.chunk_by(|&before, &after| marks.find(before).or(marks.find(after)).is_none()) {
        match headers.is_mark(text[0]) {
            true => headers.take(text[0]),
            false => _ = tell(&headers.text(&text_of(text))),
        }
    }
    tell(&headers.rest());
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks by their ids; ids from 1000 on are letters.
    fn marks() -> Marks {
        let all = || NEEDED.into_iter().chain(OTHERS).map(|(text, _)| text);
        Marks::with(|text| all().position(|mark| mark == text).map(|at| at as u32)).expect("all marks")
    }

    fn tokens(text: &str) -> Vec<u32> {
        let all: Vec<&str> = NEEDED.into_iter().chain(OTHERS).map(|(text, _)| text).collect();
        let (mut tokens, mut rest) = (Vec::new(), text);
        while let Some(letter) = rest.chars().next() {
            let mark = all.iter().position(|mark| rest.starts_with(mark));
            tokens.push(mark.map_or(1000 + letter as u32, |at| at as u32));
            rest = &rest[mark.map_or(letter.len_utf8(), |at| all[at].len())..];
        }
        tokens
    }

    fn letters(tokens: &[u32]) -> String {
        tokens.iter().filter_map(|token| char::from_u32(token.checked_sub(1000)?)).collect()
    }

    /// The reasoning and the answer in tokens, with up to `most` letters a token.
    fn in_pieces(prompt: &str, text: &[u32], most: usize, is_apart: bool) -> (String, String) {
        let mut headers = Headers::behind(&tokens(prompt), marks(), letters);
        let mut channels = Channels::new(is_apart);
        let mut whole = (String::new(), String::new());
        let mut tell = |text: String| {
            let (reasoning, answer) = channels.push(&text);
            whole.0 += &reasoning;
            whole.1 += &answer;
        };
        for run in text.chunk_by(|&before, &after| before >= 1000 && after >= 1000) {
            for piece in run.chunks(most) {
                match headers.is_mark(piece[0]) {
                    true => headers.take(piece[0]),
                    false => tell(headers.text(&letters(piece))),
                }
            }
        }
        tell(headers.rest());
        whole
    }

    const ASKED: &str = "<|start|>user<|message|>q<|end|><|start|>assistant";

    /// A prompt, an answer to it, and the reasoning and the text in that.
    const CASES: [(&str, &str, &str, &str); 23] = [
        (
            ASKED,
            "<|channel|>analysis<|message|>a b<|end|><|start|>assistant<|channel|>final<|message|> A crab.\n<|return|>",
            "a b",
            " A crab.\n",
        ),
        (
            ASKED,
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>\
             <|start|>assistant<|channel|>final<|message|>c",
            "a\nb",
            "c",
        ),
        (
            ASKED,
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.look<|channel|>\
             commentary <|constrain|>json<|message|>{\"at\": 1}<|call|>",
            "{\"at\": 1}",
            "I look.",
        ),
        (ASKED, " to=python<|channel|>analysis code<|message|>1+1<|call|>", "1+1", ""),
        (ASKED, "<|channel|>commentary to=functions.look<|constrain|>json<|message|>{}<|call|>", "{}", ""),
        (ASKED, "<|channel|>final<|constrain|>json<|message|>{}<|return|>", "", "{}"),
        (ASKED, "<|channel|>musing<|message|>a", "a", ""),
        (ASKED, "<|channel|>analysis<|message|>cut short", "cut short", ""),
        (ASKED, "<|channel|>analysis<|message|>a<|end|><|start|>assi", "a", ""),
        (ASKED, "<|channel|>analysis<|message|>a<|end|><|channel|>fina", "a", ""),
        (ASKED, "<|channel|>analysis<|message|>a<|end|>\n<|channel|>final<|message|>b", "a", "b"),
        (ASKED, "<|message|>no channel", "", "no channel"),
        (ASKED, "no header", "", "no header"),
        (ASKED, " to", "", " to"),
        (ASKED, "", "", ""),
        (ASKED, "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>b", "", "b"),
        (ASKED, "<|channel|>final<|message|>a<|return|>b", "", "a\nb"),
        (ASKED, "<|channel|>final<|message|>\u{fdd0}é🦀", "", "\u{fffd}é🦀"),
        (
            "<|start|>assistant<|channel|>analysis<|message|>I",
            " think<|end|><|start|>assistant<|channel|>final<|message|>b",
            " think",
            "b",
        ),
        ("<|start|>assistant<|channel|>final<|message|>It", " is.<|return|>", "", " is."),
        ("<|start|>assistant<|channel|>", "analysis<|message|>a", "a", ""),
        ("a long message without a mark", " goes on", "", " goes on"),
        ("q<|end|>", "<|start|>assistant<|channel|>analysis<|message|>a<|end|>", "a", ""),
    ];

    #[test]
    fn channels_are_parted_however_the_text_is_cut() {
        for (prompt, text, reasoning, answer) in CASES {
            let whole = parted(&tokens(prompt), &tokens(text), &marks(), letters);
            assert_eq!((whole.0.as_str(), whole.1.as_str()), (reasoning, answer), "{text:?} as a whole");
            for most in [1, 2, 3, 5, 100] {
                let found = in_pieces(prompt, &tokens(text), most, true);
                assert_eq!((found.0.as_str(), found.1.as_str()), (reasoning, answer), "{text:?} by {most}");
                let (nothing, all) = in_pieces(prompt, &tokens(text), most, false);
                assert!(nothing.is_empty() && !all.contains("<|"), "{text:?} by {most}: {nothing:?} {all:?}");
                let both: usize = [reasoning, answer].iter().map(|text| text.chars().count()).sum();
                assert!([both, both + 1].contains(&all.chars().count()), "{text:?} by {most}: {all:?}");
            }
        }
    }

    #[test]
    fn reasoning_that_is_not_apart_precedes_the_answer_without_headers() {
        let text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>";
        assert_eq!(in_pieces(ASKED, &tokens(text), 1, false), (String::new(), "a\nb".into()));
    }

    #[test]
    fn the_characters_of_a_mark_are_text_unless_they_are_its_token() {
        let spelt = "<|end|><|channel|>".chars().map(|letter| 1000 + letter as u32);
        let text: Vec<u32> = tokens("<|channel|>final<|message|>").into_iter().chain(spelt).collect();
        assert_eq!(in_pieces(ASKED, &text, 1, true).1, "<|end|><|channel|>");
    }

    #[test]
    fn a_tokenizer_must_have_the_marks() {
        let missing = |absent: &'static str| Marks::with(|text| (text != absent).then_some(7)).err();
        assert_eq!(missing("<|channel|>"), Some("<|channel|>"));
        assert_eq!(missing("<|constrain|>"), None);
    }
}
