//! A chat completion request.

use serde::Deserialize;
use serde::de::IgnoredAny;
use tributary_coordinator::{Document, Prepared, RequestSettings, Speaker, Turn};
use tributary_engine::{Client, Conversation};

use super::{Asked, Choices, Completed, Generation, check_model, documents, others};
use crate::body::Fields;
use crate::error::ApiError;
use crate::output::Form;

/// Messages of a chat at most.
pub const MESSAGES: usize = 1024;

/// The likeliest tokens beside each that are told at most.
const TOP_LOGPROBS: u64 = 20;

/// What a chat completion request asks for.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// Documents, system text, earlier turns and question.
    pub conversation: Conversation,
    /// How the answer is made and given.
    pub generation: Generation,
}

/// One message.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    role: String,
    content: Option<Content>,
    #[serde(rename = "name")]
    _name: Option<String>,
    /// What clients send back of an answer of the model; only without a value does it ask for nothing.
    refusal: Option<IgnoredAny>,
    audio: Option<IgnoredAny>,
    function_call: Option<IgnoredAny>,
    tool_calls: Option<Vec<IgnoredAny>>,
    annotations: Option<Vec<IgnoredAny>>,
}

/// The text of a message: a string, or parts.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "content is a string or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message; only `text` is known.
#[derive(Debug, Clone, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
}

impl Asked for ChatRequest {
    fn read(mut fields: Fields, model: &str, served: &RequestSettings) -> Result<Self, ApiError> {
        check_model(&mut fields, model)?;
        let choices = Choices::take(&mut fields, served)?;
        let mut generation = Generation::take(&mut fields, choices, &["max_completion_tokens", "max_tokens"])?;
        let wants = fields.take("logprobs")?.unwrap_or(false);
        match fields.integer("top_logprobs", 0, TOP_LOGPROBS)? {
            Some(1..) if !wants => {
                return Err(ApiError::parameter("top_logprobs", "`top_logprobs` goes with `logprobs` only"));
            }
            top if wants => generation.with_logprobs(top.unwrap_or(0) as u32),
            _ => {}
        }
        let messages: Option<Vec<Message>> = fields.take("messages")?;
        let documents = documents(&mut fields)?;
        others::finish(fields, &others::OF_CHATS)?;
        Ok(Self { conversation: conversation(messages.unwrap_or_default(), documents)?, generation })
    }

    fn document_count(&self) -> usize {
        self.conversation.documents.len()
    }

    fn prepare(&self, client: &Client) -> Result<Prepared, ApiError> {
        Ok(client.prepare(&self.conversation)?)
    }
}

impl Completed for ChatRequest {
    const FORM: Form = Form::Chat;

    fn generation(&self) -> &Generation {
        &self.generation
    }
}

/// Documents, system text, earlier turns and question.
///
/// # Errors
/// Messages that do not end with one of the user, or have several of the system.
fn conversation(messages: Vec<Message>, documents: Vec<Document>) -> Result<Conversation, ApiError> {
    if messages.len() > MESSAGES {
        let message = format!("{} messages; this service takes at most {MESSAGES}", messages.len());
        return Err(ApiError::parameter("messages", message));
    }
    let (mut system, mut turns): (Option<String>, Vec<Turn>) = (None, Vec::new());
    for (index, message) in messages.into_iter().enumerate() {
        let wrong = |what: String| ApiError::parameter(format!("messages[{index}]"), what);
        let speaker = match message.role.as_str() {
            "system" | "developer" => None,
            "user" => Some(Speaker::User),
            "assistant" => Some(Speaker::Assistant),
            role => return Err(wrong(format!("messages of `{role}` are not supported"))),
        };
        let text = message.text().map_err(wrong)?;
        match speaker {
            Some(speaker) => turns.push(Turn { speaker, text }),
            None if system.is_some() => return Err(wrong("there is one system message at most".to_owned())),
            None => system = Some(text),
        }
    }
    let last = turns.pop().ok_or_else(|| ApiError::parameter("messages", "there is no message of the user"))?;
    if last.speaker != Speaker::User {
        return Err(ApiError::parameter("messages", "the last message must be of the user"));
    }
    Ok(Conversation { documents, system, turns, query: last.text })
}

impl Message {
    fn text(self) -> Result<String, String> {
        let Self { content, refusal, audio, function_call, tool_calls, annotations, .. } = self;
        let calls = tool_calls.is_some_and(|calls| !calls.is_empty()) || function_call.is_some();
        if calls || audio.is_some() {
            return Err("calls of tools and audio are not supported".to_owned());
        }
        // They say something of the text beside it, and nothing to the model.
        let _ = (refusal, annotations);
        match content {
            None => Err("`content` is missing".to_owned()),
            Some(Content::Text(text)) => Ok(text),
            Some(Content::Parts(parts)) => match parts.iter().find(|part| part.kind != "text") {
                Some(other) => Err(format!("content of type `{}` is not supported", other.kind)),
                None => Ok(parts.iter().map(|part| part.text.as_str()).collect()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(json: &Value) -> Result<ChatRequest, ApiError> {
        let fields = Fields::from_json(json.to_string().as_bytes())?;
        ChatRequest::read(fields, "demo", &RequestSettings::default())
    }

    fn with(name: &str, value: Value) -> Result<ChatRequest, ApiError> {
        let mut json = json!({"messages": [{"role": "user", "content": "q"}]});
        json[name] = value;
        read(&json)
    }

    #[test]
    fn what_is_not_honoured_is_named() {
        let refused = [
            ("tools", json!([{"type": "function"}])),
            ("n", 2.into()),
            ("n", "1".into()),
            ("stop", json!(["a", "b", "c", "d", "e"])),
            ("stop", "".into()),
            ("stop", json!([5])),
            ("logprobs", 2.into()),
            ("top_logprobs", 3.into()),
            ("top_k", (-2).into()),
            ("top_k", 1.5.into()),
            ("top_k", true.into()),
            ("frequency_penalty", 0.5.into()),
            ("response_format", json!({"type": "json_object"})),
            ("temperature", 2.1.into()),
            ("temperature", "hot".into()),
            ("top_p", 0.into()),
            ("max_tokens", 0.into()),
            ("max_completion_tokens", 1.5.into()),
            ("seed", (-1).into()),
            ("stream", 1.into()),
            ("stream_options", json!({"include_usage": true})),
            ("document", json!(["a word that is misspelt must not cost the answer its context"])),
            ("documents", json!([5])),
            ("messages", 5.into()),
            ("tributary", json!({"explian": true})),
        ];
        for (name, value) in refused {
            let error = with(name, value.clone()).expect_err(name);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)), "{name}: {value}");
        }
        let passed = [
            ("n", 1.into()),
            ("stop", Value::Null),
            ("stop", json!([])),
            ("logprobs", false.into()),
            ("top_logprobs", 0.into()),
            ("documents", Value::Null),
            ("user", "me".into()),
            ("tools", json!([])),
        ];
        for (name, value) in passed {
            assert!(with(name, value).is_ok(), "{name}");
        }
    }

    #[test]
    fn parameters_become_settings() {
        let top_k = |value: Value| with("top_k", value).expect("a request").generation.settings.sampling.top_k;
        assert_eq!((top_k(5.into()), top_k((-1).into()), top_k(0.into()), top_k(false.into())), (5, 0, 0, 0));
        let request = read(&json!({
            "model": "demo",
            "messages": [{"role": "user", "content": "q"}],
            "max_tokens": 3, "max_completion_tokens": 4, "temperature": 2, "top_p": 1, "seed": 9, "stop": "x",
            "logprobs": true, "top_logprobs": 20, "stream": true, "stream_options": {"include_usage": true},
            "tributary": {"method": "relay", "ratio": 0.5, "explain": true},
        }))
        .expect("a request");
        let Generation { settings, delivery } = request.generation;
        assert_eq!((settings.max_tokens, settings.sampling.temperature, settings.sampling.seed), (4, 2.0, 9));
        assert_eq!((settings.method.name, settings.ratio), ("relay", Some(0.5)));
        assert!(settings.returns.scores && settings.returns.logprobs == Some(20));
        assert!(delivery.streams && delivery.includes_usage && delivery.has_logprobs && delivery.explains);
        assert_eq!(delivery.stops, ["x"]);
        assert_eq!(with("model", "gpt".into()).expect_err("another model").status.as_u16(), 404);
    }

    #[test]
    fn messages_become_a_conversation() {
        let conversation = read(&json!({
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "c", "refusal": null, "tool_calls": null, "annotations": []},
                {"role": "user", "content": "d", "name": "me"},
            ],
            "documents": ["one", {"title": "T", "text": "two"}],
        }))
        .expect("a conversation")
        .conversation;
        assert_eq!((conversation.system.as_deref(), conversation.query.as_str()), (Some("s"), "d"));
        let turns: Vec<_> = conversation.turns.iter().map(|turn| (turn.speaker, turn.text.as_str())).collect();
        assert_eq!(turns, [(Speaker::User, "a b"), (Speaker::Assistant, "c")]);
        assert_eq!(conversation.documents.len(), 2);
        let of = |messages: Value| with("messages", messages);
        let (user, system) = (json!({"role": "user", "content": "q"}), json!({"role": "system", "content": "s"}));
        let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
        let calls = json!({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]});
        let cases = [
            (json!([]), "messages", "no message of the user"),
            (json!([system, user, system]), "messages[2]", "one system message"),
            (json!([user, {"role": "assistant", "content": "a"}]), "messages", "the last message"),
            (json!([{"role": "tool", "content": "a"}, user]), "messages[0]", "`tool`"),
            (json!([image]), "messages[0]", "`image_url`"),
            (json!([user, calls, user]), "messages[1]", "tools"),
            (json!([{"role": "user"}]), "messages[0]", "`content` is missing"),
            (json!([{"role": "user", "content": "q", "colour": "red"}]), "messages", "`colour`"),
        ];
        for (messages, param, text) in cases {
            let error = of(messages).expect_err(text);
            assert_eq!(error.param.as_deref(), Some(param));
            assert!(error.message.contains(text), "{}", error.message);
        }
    }
}
