//! A chat completion request.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tributary_coordinator::{ChatOptions, Document, Ending, Message, OWN_NAMES, Prepared, TemplateValues};
use tributary_engine::{Client, Conversation};
use tributary_planner::RequestSettings;

use super::content::Content;
use super::documents::{self, Documents};
use super::pictures::{self, Said, Talk};
use super::{Asked, Choices, Completed, Generation, Terms, check_model, others};
use crate::body::{Fields, object};
use crate::delivery::ReasoningWish;
use crate::error::ApiError;
use crate::output::Form;

/// Messages of a chat at most.
pub const MESSAGES: usize = 1024;

/// Maximum number of likeliest tokens given with each token.
const TOP_LOGPROBS: u64 = 20;

/// Roles of messages.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Fields that a message may have besides its role and its text. Templates read some of them.
const OF_MESSAGES: [&str; 7] =
    ["name", "id", "reasoning_content", "reasoning", "thinking", "tool_calls", "tool_call_id"];

/// Content of a chat completion request.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// Documents, system text, earlier turns and question.
    pub conversation: Conversation,
    /// Number of documents that have no text.
    pub empty_documents: usize,
    /// Notes on places of pictures.
    pub notes: Vec<String>,
    /// Generation and delivery of the answer.
    pub generation: Generation,
}

impl Asked for ChatRequest {
    fn read(mut fields: Fields, terms: &Terms<'_>) -> Result<Self, ApiError> {
        check_model(&mut fields, terms.model)?;
        let choices = Choices::take(&mut fields, terms)?;
        let limits = ["max_completion_tokens", "max_tokens"];
        let mut generation = Generation::take(&mut fields, choices, &limits, terms)?;
        let wants = fields.take("logprobs")?.unwrap_or(false);
        match fields.integer("top_logprobs", 0, TOP_LOGPROBS)? {
            Some(1..) if !wants => {
                return Err(ApiError::parameter("top_logprobs", "`top_logprobs` goes with `logprobs` only"));
            }
            top if wants => generation.with_logprobs(top.unwrap_or(0) as u32),
            _ => {}
        }
        let messages = fields.take_by("messages", Messages)?.unwrap_or_default();
        let options = options(&mut fields)?;
        generation.delivery.reasoning = reasoning(&mut fields)?;
        let Documents { all: mut documents, empty } = documents::take(&mut fields, terms)?;
        others::finish(fields, &others::OF_CHATS, terms.ignores_unknown)?;
        let Talk { messages, documents: of_messages, notes } = read_all(messages)?;
        if !of_messages.is_empty() {
            documents.extend(of_messages);
            pictures::check(&documents, "messages", terms)?;
        }
        let conversation = Conversation { documents, messages, options };
        Ok(Self { conversation, empty_documents: empty, notes, generation })
    }

    fn prepare(&self, client: &Client) -> Result<Vec<Prepared>, ApiError> {
        let mut prepared = client.prepare(&self.conversation)?;
        prepared.notes.extend_from_slice(&self.notes);
        Ok(vec![self.generation.prompt(prepared, !self.conversation.documents.is_empty())?])
    }

    fn documents(&self) -> &[Document] {
        &self.conversation.documents
    }

    fn empty_documents(&self) -> usize {
        self.empty_documents
    }

    fn settings(
        &self,
        prepared: &Prepared,
        of: (usize, usize),
        terms: &Terms<'_>,
    ) -> Result<RequestSettings, ApiError> {
        self.generation.settings(prepared, of, Form::Chat, terms)
    }

    fn copies(&self) -> usize {
        self.generation.copies
    }
}

impl Completed for ChatRequest {
    const FORM: Form = Form::Chat;

    fn generation(&self) -> &Generation {
        &self.generation
    }
}

/// Options of the template's rendering.
fn options(fields: &mut Fields) -> Result<ChatOptions, ApiError> {
    let mut kwargs: TemplateValues = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(name) = OWN_NAMES.iter().find(|name| kwargs.contains_key(**name)) {
        let message = format!("`chat_template_kwargs.{name}` is the request's own");
        return Err(ApiError::parameter("chat_template_kwargs", message));
    }
    if let Some(thinks) = fields.take::<bool>("enable_thinking")? {
        kwargs.insert("enable_thinking".into(), thinks.into());
    }
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        kwargs.insert("reasoning_effort".into(), effort.into());
    }
    let continues = fields.take::<bool>("continue_final_message")?.unwrap_or(false);
    let ending = match (continues, fields.take::<bool>("add_generation_prompt")?) {
        (true, Some(true)) => {
            let message = "`continue_final_message` and `add_generation_prompt` do not go together";
            return Err(ApiError::parameter("continue_final_message", message));
        }
        (true, _) => Ending::Continued,
        (false, Some(false)) => Ending::Nothing,
        (false, _) => Ending::Answer,
    };
    Ok(ChatOptions { kwargs, ending })
}

/// A client's choices about the model's reasoning: whether it comes apart from the answer, and
/// whether it comes at all.
fn reasoning(fields: &mut Fields) -> Result<ReasoningWish, ApiError> {
    let is_apart = fields.take("separate_reasoning")?;
    let is_left_out = fields.take("include_reasoning")?.is_some_and(|included: bool| !included);
    Ok(ReasoningWish { is_apart, is_left_out })
}

/// Reads the messages of a body, each as its JSON.
struct Messages;

impl<'de> DeserializeSeed<'de> for Messages {
    type Value = Vec<Box<RawValue>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Messages {
    type Value = Vec<Box<RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut messages = Vec::new();
        while let Some(message) = list.next_element()? {
            if messages.len() == MESSAGES {
                return Err(Error::custom(format!(
                    "more than {MESSAGES} messages; this service takes at most {MESSAGES}"
                )));
            }
            messages.push(message);
        }
        Ok(messages)
    }
}

/// Messages as a template sees them, and their pictures as documents.
fn read_all(messages: Vec<Box<RawValue>>) -> Result<Talk, ApiError> {
    let read = |(index, message): (usize, Box<RawValue>)| {
        message_of(&message).map_err(|what| ApiError::parameter(format!("messages[{index}]"), what))
    };
    let messages = messages.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    if messages.iter().all(|said: &Said| said.message.is_system()) {
        return Err(ApiError::parameter("messages", "there is no message of the user"));
    }
    pictures::moved(messages)
}

/// A message from its object. Its other fields besides role and text go to the template.
fn message_of(message: &RawValue) -> Result<Said, String> {
    if !message.get().trim_start().starts_with('{') {
        return Err("a message is an object with `role` and `content`".into());
    }
    let (mut fields, content) = object::<Content>(message, "content")?;
    let role = match fields.remove("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role,
        Some(Value::String(role)) => return Err(format!("messages of `{role}` are not supported")),
        _ => return Err("`role` is missing; it is a text".into()),
    };
    let asks = |value: &Value| !(value.is_null() || value.as_array().is_some_and(Vec::is_empty));
    if let Some(name) = ["audio", "function_call"].into_iter().find(|name| fields.get(*name).is_some_and(asks)) {
        return Err(format!("`{name}` in a message is not supported"));
    }
    // They describe the text, and the model does not see them.
    ["refusal", "annotations", "audio", "function_call"].iter().for_each(|name| _ = fields.remove(*name));
    let calls = fields.get("tool_calls").is_some_and(asks);
    if !calls {
        fields.remove("tool_calls");
    }
    fields.get_mut("tool_calls").into_iter().for_each(arguments_as_objects);
    let content = match content {
        Some(content) => content,
        None if calls || fields.contains_key("reasoning_content") => Content::default(),
        None => return Err("`content` is missing".into()),
    };
    if let Some(name) = fields.keys().find(|name| !OF_MESSAGES.contains(&name.as_str())) {
        return Err(format!("`{name}` is not known in a message"));
    }
    Ok(Said { message: Message { role, content: String::new(), rest: fields }, content })
}

/// Arguments of calls, which clients write as JSON in a text and templates read as objects.
fn arguments_as_objects(calls: &mut Value) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let object = arguments.as_str().and_then(|text| serde_json::from_str::<TemplateValues>(text).ok());
        if let Some(object) = object {
            *arguments = object.into();
        }
    }
}

#[cfg(test)]
mod tests;
