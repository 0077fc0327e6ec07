//! Conversations: messages as a chat template sees them, and the ending of the prompt.

use serde_json::{Map, Value};

/// Values that a chat template reads, by their names.
pub type TemplateValues = Map<String, Value>;

/// A message of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// Role of the speaker, as chat templates know it: `system`, `user`, `assistant`, `tool`, or
    /// another.
    pub role: String,
    /// Text of the message.
    pub content: String,
    /// Other fields that a template may read, such as `reasoning_content` or `tool_calls`.
    pub rest: Map<String, Value>,
}

/// Options of a conversation's rendering.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatOptions {
    /// Values that the template reads besides messages, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
    /// Ending of the prompt.
    pub ending: Ending,
}

/// Ending of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ending {
    /// At the beginning of an answer of the model.
    #[default]
    Answer,
    /// After the last message.
    Nothing,
    /// Inside the last message, which the model continues.
    Continued,
}

/// Names that a template gets from the request itself.
pub const OWN_NAMES: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Names under which a message has its reasoning; templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl Message {
    /// A message of plain text.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: content.into(), rest: Map::new() }
    }

    /// Whether it is an instruction rather than a turn.
    pub fn is_system(&self) -> bool {
        matches!(self.role.as_str(), "system" | "developer")
    }

    /// The object that a template sees. Keys without a value are left out, and reasoning has all
    /// names that templates look for.
    pub(crate) fn seen(&self) -> Value {
        let mut seen = Map::new();
        seen.insert("role".into(), self.role.clone().into());
        seen.insert("content".into(), self.content.clone().into());
        seen.extend(
            self.rest.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())),
        );
        let reasoning = REASONING.iter().find_map(|name| seen.get(*name)).cloned();
        if let Some(reasoning) = reasoning {
            seen.entry("thinking").or_insert_with(|| reasoning.clone());
            seen.insert(REASONING[0].into(), reasoning);
        }
        seen.into()
    }
}
