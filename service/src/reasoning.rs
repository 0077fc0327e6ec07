//! A model's reasoning apart from its answer: text between `<think>` and `</think>`, as it comes,
//! for any split into tokens, or that of channels
//! ([`harmony`](tributary_coordinator::harmony)).

use tributary_coordinator::harmony::{Channels, Headers, Marks};
use tributary_engine::Client;

use crate::delivery::ReasoningWish;

/// Parser that separates reasoning from the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReasoningParser {
    /// [`Harmony`](Self::Harmony) if the chat template writes `<|channel|>` and the tokenizer has
    /// the marks, else [`None`](Self::None).
    #[default]
    Auto,
    /// It is not: all text is the answer.
    None,
    /// Reasoning is between `<think>` and `</think>`, at the beginning.
    Think,
    /// Reasoning is in channels of OpenAI's Harmony format.
    Harmony,
}

/// Separation of reasoning in a service's answers.
#[derive(Debug, Clone)]
pub struct Reasoning {
    /// Whether reasoning comes apart where a request does not choose.
    is_apart: bool,
    /// Marks of the Harmony format, if answers come in it.
    marks: Option<Marks>,
}

impl Reasoning {
    /// Separation by a parser.
    ///
    /// # Errors
    /// Returns the text of a mark that the parser needs and that is no token of the model.
    pub fn by(parser: ReasoningParser, client: &Client) -> Result<Self, &'static str> {
        let marks = match parser {
            ReasoningParser::Harmony => Some(Marks::with(|text| client.token(text))?),
            ReasoningParser::Auto => client.channels(),
            ReasoningParser::None | ReasoningParser::Think => None,
        };
        Ok(Self { is_apart: parser == ReasoningParser::Think || marks.is_some(), marks })
    }

    /// Parser of an answer after the last tokens of its prompt, and the reader of headers that it
    /// needs. Without one all text is the answer.
    pub fn begin(&self, wish: ReasoningWish, prompt: &[u32], client: &Client) -> (Option<Headers>, Option<Parser>) {
        let is_apart = wish.is_left_out || wish.is_apart.unwrap_or(self.is_apart);
        match &self.marks {
            Some(marks) => {
                let headers = Headers::behind(prompt, marks.clone(), |ids| client.text_of_prompt(ids));
                (Some(headers), Some(Parser::Harmony(Channels::new(is_apart))))
            }
            None => (None, is_apart.then(|| Parser::Think(Thinking::behind(&client.text_of_prompt(prompt))))),
        }
    }
}

/// Parser of one answer.
#[derive(Debug)]
pub enum Parser {
    /// By `<think>` and `</think>`.
    Think(Thinking),
    /// By channels.
    Harmony(Channels),
}

impl Parser {
    /// Takes a text; gives the reasoning and the answer in it and in the held text.
    pub fn push(&mut self, text: &str) -> (String, String) {
        match self {
            Self::Think(thinking) => thinking.push(text),
            Self::Harmony(channels) => channels.push(text),
        }
    }

    /// The rest at the end.
    pub fn rest(&mut self) -> (String, String) {
        match self {
            Self::Think(thinking) => thinking.rest(),
            Self::Harmony(_) => Default::default(),
        }
    }
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// The text so far.
#[derive(Debug)]
pub struct Thinking {
    state: State,
    /// Text that may be reasoning or answer.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but space has come.
    Begin,
    /// Within the reasoning; `true` once there is text of it.
    Inside(bool),
    /// After the reasoning; only space has come since.
    After,
    /// In the answer.
    Answer,
}

impl Thinking {
    /// State after a prompt that ends with this text: a template may have opened the reasoning, or
    /// opened and closed it.
    pub fn behind(prompt: &str) -> Self {
        let state = match (prompt.rfind(OPEN), prompt.rfind(CLOSE)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => State::Inside(false),
            (Some(_), Some(_)) => State::Answer,
            _ => State::Begin,
        };
        Self { state, held: String::new() }
    }

    /// Takes a text; gives the reasoning and the answer in it and in the held text.
    pub fn push(&mut self, text: &str) -> (String, String) {
        self.held.push_str(text);
        let (mut reasoning, mut answer) = (String::new(), String::new());
        loop {
            let before = (self.state, self.held.len());
            match self.state {
                State::Begin => self.begin(),
                State::Inside(_) => self.inside(&mut reasoning),
                State::After => {
                    self.held = self.held.trim_start().to_owned();
                    if !self.held.is_empty() {
                        self.state = State::Answer;
                    }
                }
                State::Answer => answer.push_str(&std::mem::take(&mut self.held)),
            }
            if (self.state, self.held.len()) == before {
                return (reasoning, answer);
            }
        }
    }

    /// The rest at the end.
    pub fn rest(&mut self) -> (String, String) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Inside(_) => (held.trim_end().to_owned(), String::new()),
            State::After => Default::default(),
            State::Begin | State::Answer => (String::new(), held),
        }
    }

    fn begin(&mut self) {
        let text = self.held.trim_start();
        if let Some(inside) = text.strip_prefix(OPEN) {
            self.held = inside.to_owned();
            self.state = State::Inside(false);
        } else if !OPEN.starts_with(text) {
            self.state = State::Answer;
        }
    }

    fn inside(&mut self, reasoning: &mut String) {
        let State::Inside(has_text) = self.state else { return };
        let (text, after) = match self.held.split_once(CLOSE) {
            Some((text, after)) => (text.trim_end(), Some(after)),
            None => {
                // Space, and a possible beginning of the end mark, wait for the next text.
                let partial = (1..CLOSE.len()).rev().find(|&length| self.held.ends_with(&CLOSE[..length])).unwrap_or(0);
                (self.held[..self.held.len() - partial].trim_end(), None)
            }
        };
        let length = text.len();
        let text = if has_text { text } else { text.trim_start() };
        reasoning.push_str(text);
        let has_text = has_text || !text.is_empty();
        (self.held, self.state) = match after {
            Some(after) => (after.to_owned(), State::After),
            None => (self.held[length..].to_owned(), State::Inside(has_text)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parted(prompt: &str, text: &str, letters: usize) -> (String, String) {
        let mut thinking = Thinking::behind(prompt);
        let (mut reasoning, mut answer) = (String::new(), String::new());
        let all: Vec<char> = text.chars().collect();
        for piece in all.chunks(letters) {
            let (more, said) = thinking.push(&piece.iter().collect::<String>());
            reasoning += &more;
            answer += &said;
        }
        let (more, said) = thinking.rest();
        (reasoning + &more, answer + &said)
    }

    #[test]
    fn reasoning_is_parted_however_the_text_is_cut() {
        let cases = [
            ("", "<think>\nlet me see\n\nso\n</think>\n\nA crab.", "let me see\n\nso", "A crab."),
            ("", "  <think>a</think>b </think> c", "a", "b </think> c"),
            ("", "no reasoning <think>", "", "no reasoning <think>"),
            ("", "<thinker>", "", "<thinker>"),
            ("", "<think>cut short </thi", "cut short </thi", ""),
            ("", "<think></think>b", "", "b"),
            ("", "<thi", "", "<thi"),
            ("..<think>\n", "opened by the template </think> b", "opened by the template", "b"),
            ("..<think>\n\n</think>\n\n", "<think> is a word here", "", "<think> is a word here"),
            ("", "", "", ""),
            ("", " é<think>", "", " é<think>"),
        ];
        for (prompt, text, reasoning, answer) in cases {
            for letters in [1, 2, 3, 5, 100] {
                let found = parted(prompt, text, letters);
                assert_eq!((found.0.as_str(), found.1.as_str()), (reasoning, answer), "{text:?} by {letters}");
            }
        }
    }
}
