//! Renders a conversation by a model's chat template, and locates the documents in the text.
//! Independent of tokens.

mod folder;
mod origin;
mod written;

use serde_json::{Map, Value};

use crate::conversation::{ChatOptions, Ending, Message};
use crate::jinja::{self, Failure};
use crate::{Error, Result};

pub(crate) use self::folder::{object, special_tokens};
use self::origin::{each_text, origins};
pub use self::written::{OwnedPart, Placed, PromptPart, Written};

/// A model's chat template.
#[derive(Debug, Clone)]
pub struct Template {
    source: String,
    /// Name and text of special tokens that it may use.
    tokens: Vec<(String, String)>,
}

/// A conversation to be rendered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Talk<'a> {
    /// An instruction before all messages, if they have none of their own.
    pub system: Option<&'a str>,
    /// A text before the documents, in the message that has them.
    pub lead: &'a str,
    /// The documents as one text. They come first in the first message of the user.
    pub documents: &'a str,
    /// Messages of the conversation.
    pub messages: &'a [Message],
}

/// Facts of a rendering that no conversation has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rendering {
    /// Tools that the model may call; null for none.
    pub tools: Value,
    /// The moment, in seconds after the beginning of 1970; now where absent.
    pub unix_s: Option<u64>,
}

/// Follows the text that the model continues; the space shows whether the template trims it.
const CONTINUED: &str = "\u{F8FF}CONTINUED\u{F8FE}";

impl Template {
    /// A template from its parts.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Self {
        let token = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        Self { source: source.to_owned(), tokens: vec![token("bos_token", bos_token), token("eos_token", eos_token)] }
    }

    /// Renders a conversation as transformers does. If the template takes no system message, or
    /// drops it, its text goes before the documents instead; several that it refuses are joined.
    ///
    /// # Errors
    /// Returns [`Error::Template`] if the template fails, and [`Error::Conversation`] if it refuses
    /// the messages.
    pub fn write(&self, talk: &Talk<'_>, options: &ChatOptions) -> Result<Written> {
        let mut messages = talk.messages.to_vec();
        if let Some(system) = talk.system.filter(|_| !messages.iter().any(Message::is_system)) {
            messages.insert(0, Message::new("system", system));
        }
        if !self.source.contains("developer") {
            messages
                .iter_mut()
                .filter(|message| message.is_system())
                .for_each(|message| message.role = "system".into());
        }
        let has_system = messages.iter().any(Message::is_system);
        match self.placed(talk, &messages, "", options) {
            Ok(written) if has_system && self.drops_system(talk, &messages, &written, options) => {
                self.placed_in_user(talk, &messages, options)
            }
            Err(Error::Conversation(_)) if has_system => {
                let joined = joined(&messages);
                let first = if joined == messages { None } else { self.placed(talk, &joined, "", options).ok() };
                match first {
                    Some(written) => Ok(written),
                    None => self.placed_in_user(talk, &messages, options),
                }
            }
            other => other,
        }
    }

    /// Whether a rendering contains nothing of the system messages, as if they were absent.
    fn drops_system(&self, talk: &Talk<'_>, messages: &[Message], written: &Written, options: &ChatOptions) -> bool {
        let without: Vec<Message> = messages.iter().filter(|message| !message.is_system()).cloned().collect();
        let says = |message: &Message| message.is_system() && !message.content.trim().is_empty();
        let is_there = |message: &Message| written.text.contains(message.content.trim());
        let gone = |without| self.placed(talk, without, "", options).is_ok_and(|other| other.text == written.text);
        // A short text may be one of the template's own words: a rendering without it decides.
        let (short, long): (Vec<_>, Vec<_>) =
            messages.iter().filter(|message| says(message)).partition(|message| message.content.len() < 64);
        let says_something = !short.is_empty() || !long.is_empty();
        says_something && !long.iter().any(|message| is_there(message)) && gone(&without)
    }

    /// The system messages' texts in front of the first message of the user.
    fn placed_in_user(&self, talk: &Talk<'_>, messages: &[Message], options: &ChatOptions) -> Result<Written> {
        let (system, others): (Vec<Message>, Vec<Message>) = messages.iter().cloned().partition(Message::is_system);
        let before: String = system.iter().map(|message| format!("{}\n\n", message.content.trim())).collect();
        Ok(Written { system_in_user: true, ..self.placed(talk, &others, &before, options)? })
    }

    /// Renders messages with a text, the lead and the documents in the first of the user.
    fn placed(&self, talk: &Talk<'_>, messages: &[Message], before: &str, options: &ChatOptions) -> Result<Written> {
        let mut seen: Vec<Value> = messages.iter().map(Message::seen).collect();
        let first = messages.iter().position(|message| message.role == "user");
        let first = first.or_else(|| messages.iter().position(|message| !message.is_system())).unwrap_or(0);
        let begin = before.len() + talk.lead.len();
        if let Some(Value::String(content)) = seen.get_mut(first).and_then(|message| message.get_mut("content")) {
            *content = [before, talk.lead, talk.documents, content].concat();
        }
        let text = self.ended(&seen, options)?;
        let plain = |messages: &[Value]| self.ended(messages, options).ok();
        let origins = origins(&text, &seen, plain);
        // The content is the first text of its message.
        let mut earlier = 0;
        each_text(&mut seen[..first.min(messages.len())], &mut |_| earlier += 1);
        let documents = begin..begin + talk.documents.len();
        let mut texts = Vec::new();
        each_text(&mut seen, &mut |text| texts.push(std::mem::take(text)));
        Ok(Written::new(text, &origins, &texts, (earlier, documents)))
    }

    /// Renders messages, up to the place where the answer goes on.
    fn ended(&self, messages: &[Value], options: &ChatOptions) -> Result<String> {
        if options.ending != Ending::Continued {
            return self.rendered(messages, options);
        }
        let mut messages = messages.to_vec();
        let content = messages.last_mut().and_then(|message| message.get_mut("content"));
        let Some(Value::String(content)) = content else { return self.rendered(&messages, options) };
        content.push_str(CONTINUED);
        content.push(' ');
        let text = self.rendered(&messages, options)?;
        let lost = || Error::Conversation("it does not repeat the last message, which is to be continued".into());
        let end = text.rfind(CONTINUED).ok_or_else(lost)?;
        let keeps_space = text[end + CONTINUED.len()..].starts_with(' ');
        Ok(if keeps_space { &text[..end] } else { text[..end].trim_end() }.to_owned())
    }

    /// The text of messages as the template itself writes them.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn text(&self, messages: &[Message], options: &ChatOptions, rendering: &Rendering) -> Result<String> {
        self.rendered_as(&messages.iter().map(Message::seen).collect::<Vec<_>>(), options, rendering)
    }

    fn rendered(&self, messages: &[Value], options: &ChatOptions) -> Result<String> {
        self.rendered_as(messages, options, &Rendering::default())
    }

    fn rendered_as(&self, messages: &[Value], options: &ChatOptions, rendering: &Rendering) -> Result<String> {
        let mut values: Map<String, Value> =
            self.tokens.iter().map(|(name, text)| (name.clone(), text.clone().into())).collect();
        values.extend(options.kwargs.clone());
        values.insert("messages".into(), messages.into());
        values.insert("add_generation_prompt".into(), (options.ending == Ending::Answer).into());
        values.insert("tools".into(), rendering.tools.clone());
        values.insert("documents".into(), Value::Null);
        jinja::render_at(&self.source, &values, rendering.unix_s).map_err(|failure| match failure {
            Failure::Refused(words) => Error::Conversation(one_line(&words)),
            Failure::Broken(cause) => Error::Template(one_line(&cause)),
        })
    }

    /// Tries the template on conversations that every model should accept: one message, and three,
    /// with a system text and without.
    ///
    /// # Errors
    /// Returns [`Error::Template`] if it fails on all of them, or refuses a message of the user
    /// alone.
    pub fn check(&self) -> Result<()> {
        let user = [Message::new("user", "Hello")];
        let longer = [user[0].clone(), Message::new("assistant", "Hi"), user[0].clone()];
        for (system, messages) in [(None, &user[..]), (Some("Be brief."), &user), (None, &longer)] {
            let talk = Talk { system, messages, ..Talk::default() };
            match self.write(&talk, &ChatOptions::default()) {
                Err(Error::Conversation(words)) if messages.len() == 1 && system.is_none() => {
                    return Err(Error::Template(format!("it refuses a single message of the user: {words}")));
                }
                Ok(_) | Err(Error::Conversation(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether its source contains a text.
    pub fn contains(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// Whether the prompt depends on the day.
    pub fn asks_for_the_date(&self) -> bool {
        self.source.contains("strftime_now")
    }

    /// All text that may contain a mark of the template: its source, and its renderings.
    pub(crate) fn written(&self) -> String {
        let tokens = self.tokens.iter().map(|(_, text)| format!("{text}\n")).collect::<String>();
        format!("{}\n{tokens}{}", self.source, self.rendered_marks())
    }

    /// Its rendering around an empty message.
    pub(crate) fn rendered_marks(&self) -> String {
        let messages = [Message::new("user", "")];
        let rendered = [None, Some("system")].into_iter().filter_map(|system| {
            let talk = Talk { system, messages: &messages, ..Talk::default() };
            Some(self.write(&talk, &ChatOptions::default()).ok()?.text + "\n")
        });
        rendered.collect()
    }
}

/// The same messages with all system messages joined in one, in front.
fn joined(messages: &[Message]) -> Vec<Message> {
    let (system, others): (Vec<Message>, Vec<Message>) = messages.iter().cloned().partition(Message::is_system);
    let texts: Vec<&str> = system.iter().map(|message| message.content.as_str()).collect();
    let first = Message::new("system", texts.join("\n\n"));
    std::iter::once(first).chain(others).collect()
}

fn one_line(text: &str) -> String {
    let visible = |letter: char| if letter.is_control() { ' ' } else { letter };
    let line = text.chars().map(visible).collect::<String>();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(400) {
        Some((end, _)) => format!("{}..", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests;
