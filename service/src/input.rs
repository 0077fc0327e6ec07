//! What a client sends: a chat completion request in OpenAI's form, with `documents` and a `tributary` object beside it.
//!
//! What is not honoured is refused and named; it is never passed over in silence.

use serde::Deserialize;
use serde_json::{Map, Value};
use tributary_coordinator::{Document, RequestSettings, method_named};
use tributary_engine::Conversation;

use crate::error::ApiError;

/// A chat completion request.
#[derive(Debug, Clone, Deserialize)]
pub struct ChatRequest {
    /// The model's name, as `/v1/models` gives it.
    pub model: Option<String>,
    /// A system message, if there is one, and the user's.
    pub messages: Vec<Message>,
    /// The context, in its order.
    pub documents: Option<Vec<Document>>,
    /// Whether the answer comes token by token.
    #[serde(default)]
    pub stream: Option<bool>,
    /// What a stream has besides tokens.
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    /// Tokens to generate at most.
    pub max_tokens: Option<usize>,
    /// The same by its newer name, which counts.
    pub max_completion_tokens: Option<usize>,
    /// 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// Draws from the smallest set of tokens with at least this probability.
    pub top_p: Option<f32>,
    /// Seed of the draws.
    pub seed: Option<u64>,
    /// How the prompt is prefilled.
    #[serde(default)]
    pub tributary: Option<Choices>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// What a stream has besides tokens.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct StreamOptions {
    /// Whether the last chunk tells how many tokens there were.
    #[serde(default)]
    pub include_usage: bool,
}

/// One message.
#[derive(Debug, Clone, Deserialize)]
pub struct Message {
    /// `system`, `developer` or `user`.
    pub role: String,
    /// Its text.
    pub content: Content,
}

/// The text of a message: a string, or parts.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "content is a string or a list of parts")]
pub enum Content {
    /// In one piece.
    Text(String),
    /// In several.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Debug, Clone, Deserialize)]
pub struct ContentPart {
    /// What it is; only `text` is known.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    #[serde(default)]
    pub text: String,
}

/// How a prompt is prefilled; the server's own choice where absent.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// Name of the method.
    pub method: Option<String>,
    /// Share of the context to recompute.
    pub ratio: Option<f64>,
    /// Whether chunks are reordered by importance.
    pub reorder: Option<bool>,
    /// What ranks send each other during recompute.
    pub exchange: Option<String>,
}

/// Whether a value asks for nothing.
type AsksNothing = fn(&Value) -> bool;

/// Parameters that change an answer and are not honoured, with the values that ask for nothing.
const NOT_HONOURED: [(&str, AsksNothing); 15] = [
    ("tools", is_empty),
    ("tool_choice", is_none),
    ("functions", is_empty),
    ("function_call", is_none),
    ("n", is_one),
    ("stop", is_empty),
    ("logprobs", is_off),
    ("top_logprobs", is_zero),
    ("logit_bias", is_empty),
    ("frequency_penalty", is_zero),
    ("presence_penalty", is_zero),
    ("top_k", is_off),
    ("response_format", is_text),
    ("audio", is_empty),
    ("prediction", is_empty),
];

/// Parameters that change no answer here, whatever they are.
const WITHOUT_EFFECT: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

fn is_none(value: &Value) -> bool {
    value.is_null() || value == "none" || value == "auto"
}

fn is_one(value: &Value) -> bool {
    value.is_null() || value.as_u64() == Some(1)
}

fn is_zero(value: &Value) -> bool {
    value.is_null() || value.as_f64() == Some(0.0)
}

fn is_off(value: &Value) -> bool {
    value.is_null() || *value == Value::Bool(false)
}

fn is_text(value: &Value) -> bool {
    value.is_null() || value.get("type").is_some_and(|kind| kind == "text")
}

impl ChatRequest {
    /// Checks what needs no engine.
    ///
    /// # Errors
    /// A parameter that is not honoured.
    pub fn check(&self) -> Result<(), ApiError> {
        for (name, asks_nothing) in NOT_HONOURED {
            if self.others.get(name).is_some_and(|value| !asks_nothing(value)) {
                return Err(ApiError::parameter(name, format!("`{name}` is not supported")));
            }
        }
        let is_known =
            |name: &str| WITHOUT_EFFECT.contains(&name) || NOT_HONOURED.iter().any(|(known, _)| *known == name);
        match self.others.iter().find(|(name, value)| !value.is_null() && !is_known(name)) {
            Some((name, _)) => Err(ApiError::parameter(name.clone(), format!("`{name}` is not known here"))),
            None => Ok(()),
        }
    }

    /// Documents, system text and question.
    ///
    /// # Errors
    /// Messages that are not a system message, if any, and one of the user.
    pub fn conversation(&self) -> Result<Conversation, ApiError> {
        let wrong = |index: usize, message: &str| ApiError::parameter(format!("messages[{index}]"), message);
        let (mut system, mut query) = (None, None);
        for (index, message) in self.messages.iter().enumerate() {
            let text = message.content.text().map_err(|what| wrong(index, &what))?;
            let place = match message.role.as_str() {
                "system" | "developer" => &mut system,
                "user" => &mut query,
                role => return Err(wrong(index, &format!("messages of `{role}` are not supported yet"))),
            };
            if place.replace(text).is_some() {
                return Err(wrong(index, "conversations of several turns are not supported yet"));
            }
        }
        let query = query.ok_or_else(|| ApiError::parameter("messages", "there is no message of the user"))?;
        Ok(Conversation { documents: self.documents.clone().unwrap_or_default(), system, query })
    }

    /// The server's settings with this request's choices.
    ///
    /// # Errors
    /// A choice that cannot be.
    pub fn settings(&self, served: &RequestSettings) -> Result<RequestSettings, ApiError> {
        let mut settings = served.clone();
        if let Some(max_tokens) = self.max_completion_tokens.or(self.max_tokens) {
            settings.max_tokens = max_tokens;
        }
        let sampling = &mut settings.sampling;
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_p = self.top_p.unwrap_or(sampling.top_p);
        sampling.seed = self.seed.unwrap_or(sampling.seed);
        let Some(choices) = &self.tributary else { return Ok(settings) };
        let of = |name: &'static str| move |error: String| ApiError::parameter(format!("tributary.{name}"), error);
        if let Some(method) = &choices.method {
            settings.method = method_named(method).map_err(|error| of("method")(error.to_string()))?;
        }
        settings.ratio = choices.ratio.or(settings.ratio);
        if let Some(exchange) = &choices.exchange {
            settings.exchange = Some(exchange.parse().map_err(of("exchange"))?);
        }
        if let Some(reorder) = choices.reorder {
            settings.reorder = reorder.then_some(tributary_protocol::Importance::Mass);
        }
        Ok(settings)
    }

    /// Whether the answer comes token by token.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream tells how many tokens there were.
    pub fn includes_usage(&self) -> bool {
        self.stream_options.unwrap_or_default().include_usage
    }
}

impl Content {
    fn text(&self) -> Result<String, String> {
        match self {
            Content::Text(text) => Ok(text.clone()),
            Content::Parts(parts) => match parts.iter().find(|part| part.kind != "text") {
                Some(other) => Err(format!("content of type `{}` is not supported", other.kind)),
                None => Ok(parts.iter().map(|part| part.text.as_str()).collect()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: Value) -> ChatRequest {
        serde_json::from_value(json).expect("a request")
    }

    fn with(name: &str, value: Value) -> ChatRequest {
        let mut json = serde_json::json!({"messages": [{"role": "user", "content": "q"}]});
        json[name] = value;
        request(json)
    }

    #[test]
    fn what_is_not_honoured_is_named() {
        let refused = [
            ("tools", serde_json::json!([{"type": "function"}])),
            ("n", 2.into()),
            ("stop", "x".into()),
            ("logprobs", true.into()),
            ("frequency_penalty", 0.5.into()),
            ("response_format", serde_json::json!({"type": "json_object"})),
            ("document", serde_json::json!(["a word that is misspelt must not cost the answer its context"])),
        ];
        for (name, value) in refused {
            let error = with(name, value).check().expect_err(name);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)));
        }
        let passed = [("n", 1.into()), ("stop", Value::Null), ("logprobs", false.into()), ("user", "me".into())];
        assert_eq!(with("documents", Value::Null).check(), Ok(()));
        for (name, value) in passed {
            assert_eq!(with(name, value).check(), Ok(()), "{name}");
        }
    }

    #[test]
    fn messages_become_a_conversation() {
        let conversation = request(serde_json::json!({
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
            ],
            "documents": ["one", {"title": "T", "text": "two"}],
        }))
        .conversation()
        .expect("a conversation");
        assert_eq!((conversation.system.as_deref(), conversation.query.as_str()), (Some("s"), "a b"));
        assert_eq!(conversation.documents.len(), 2);
        let of = |messages: Value| request(serde_json::json!({"messages": messages})).conversation();
        let user = serde_json::json!({"role": "user", "content": "q"});
        let image = serde_json::json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
        let cases = [
            (serde_json::json!([]), "messages", "no message of the user"),
            (serde_json::json!([user, user]), "messages[1]", "several turns"),
            (serde_json::json!([{"role": "assistant", "content": "a"}, user]), "messages[0]", "`assistant`"),
            (serde_json::json!([image]), "messages[0]", "`image_url`"),
        ];
        for (messages, param, text) in cases {
            let error = of(messages).expect_err(text);
            assert_eq!(error.param.as_deref(), Some(param));
            assert!(error.message.contains(text), "{}", error.message);
        }
    }
}
