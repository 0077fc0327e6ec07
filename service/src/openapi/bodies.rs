//! What requests have, for OpenAPI's description. The fields are those that are read in `input`; a test holds that they are the same.

use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::input::chat::MESSAGES;
use crate::input::{Choices, STOP_CHARACTERS, STOPS, StreamOptions};

/// A chat completion request. What is not listed is refused.
#[derive(ToSchema)]
#[schema(as = ChatRequest)]
#[allow(dead_code, reason = "it is described, not made")]
pub struct ChatBody {
    /// The model's name, as `GET /v1/models` gives it.
    model: Option<String>,
    /// At most one message of the system, which stands before the documents and shapes every chunk; then turns of user and
    /// assistant, of which the last, the user's, is the query. Earlier turns ride with the query, behind the documents.
    #[schema(value_type = Vec<Object>, min_items = 1)]
    messages: Vec<Value>,
    /// The context, in its order. Absent: the messages are the context, but for their last 32 tokens.
    #[schema(value_type = Option<Vec<Object>>)]
    documents: Option<Vec<Value>>,
    /// How the prompt is prefilled.
    tributary: Option<Choices>,
    /// Whether the answer comes token by token.
    stream: Option<bool>,
    /// What a stream has besides tokens; with `stream` only.
    stream_options: Option<StreamOptions>,
    /// Tokens to generate at most.
    #[schema(minimum = 1)]
    max_tokens: Option<u64>,
    /// The same by its newer name, which counts.
    #[schema(minimum = 1)]
    max_completion_tokens: Option<u64>,
    /// 0 takes the likeliest token.
    #[schema(minimum = 0, maximum = 2)]
    temperature: Option<f64>,
    /// Draws from the smallest set of tokens with at least this probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Draws from so many of the likeliest tokens; 0, -1 and false turn it off.
    #[schema(value_type = Option<Object>)]
    top_k: Option<Value>,
    /// Seed of the draws.
    #[schema(minimum = 0)]
    seed: Option<u64>,
    /// Texts that end the answer: one, or up to four. They are not part of it.
    #[schema(value_type = Option<Object>)]
    stop: Option<Value>,
    /// Whether each token comes with its log-probability.
    logprobs: Option<bool>,
    /// The likeliest tokens that come with each, with `logprobs` only.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u64>,
}

/// A text completion request. What is not listed is refused.
#[derive(ToSchema)]
#[schema(as = CompletionRequest)]
#[allow(dead_code, reason = "it is described, not made")]
pub struct CompletionBody {
    /// The model's name, as `GET /v1/models` gives it.
    model: Option<String>,
    /// A text, a list of one text, or a list of token ids. No chat template is put around it.
    #[schema(value_type = Object)]
    prompt: Value,
    /// The context, in its order. Absent: the prompt is the context, but for its last 32 tokens.
    #[schema(value_type = Option<Vec<Object>>)]
    documents: Option<Vec<Value>>,
    /// How the prompt is prefilled.
    tributary: Option<Choices>,
    /// Whether the answer comes token by token.
    stream: Option<bool>,
    /// What a stream has besides tokens; with `stream` only.
    stream_options: Option<StreamOptions>,
    /// Tokens to generate at most.
    #[schema(minimum = 1)]
    max_tokens: Option<u64>,
    /// 0 takes the likeliest token.
    #[schema(minimum = 0, maximum = 2)]
    temperature: Option<f64>,
    /// Draws from the smallest set of tokens with at least this probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Draws from so many of the likeliest tokens; 0, -1 and false turn it off.
    #[schema(value_type = Option<Object>)]
    top_k: Option<Value>,
    /// Seed of the draws.
    #[schema(minimum = 0)]
    seed: Option<u64>,
    /// Texts that end the answer: one, or up to four. They are not part of it.
    #[schema(value_type = Option<Object>)]
    stop: Option<Value>,
    /// The likeliest tokens that come with each, with their log-probabilities.
    #[schema(minimum = 0, maximum = 5)]
    logprobs: Option<u64>,
}

/// Documents that are to be prefilled ahead of use.
#[derive(ToSchema)]
#[schema(as = ChunksRequest)]
#[allow(dead_code, reason = "it is described, not made")]
pub struct ChunksBody {
    /// The documents.
    #[schema(value_type = Vec<Object>, min_items = 1)]
    documents: Vec<Value>,
    /// The system text of the chats that they are for: it stands before them and shapes them.
    system: Option<String>,
    /// The model's name, as `GET /v1/models` gives it.
    model: Option<String>,
}

/// A message of a chat.
fn message() -> Value {
    json!({
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"type": "string", "enum": ["system", "developer", "user", "assistant"]},
            "content": {
                "oneOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "text"],
                            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        },
                    },
                ],
            },
            "name": {"type": ["string", "null"]},
            "refusal": {},
            "audio": {"type": "null"},
            "function_call": {"type": "null"},
            "tool_calls": {"type": ["array", "null"], "maxItems": 0},
            "annotations": {"type": ["array", "null"]},
        },
        "additionalProperties": false,
    })
}

/// The schemas that a type of Rust does not say: forms of one field, and values that ask for nothing.
pub fn by_hand() -> Vec<(&'static str, &'static str, Value)> {
    let list = |item: Value| json!({"type": ["array", "null"], "items": item});
    let document = json!({
        "oneOf": [
            {"type": "string"},
            {
                "type": "object",
                "required": ["text"],
                "properties": {"text": {"type": "string"}, "title": {"type": ["string", "null"]}},
            },
        ],
    });
    let mut needed = list(document.clone());
    (needed["type"], needed["minItems"]) = ("array".into(), 1.into());
    let top_k = json!({"oneOf": [{"type": "integer", "minimum": -1}, {"const": false}, {"type": "null"}]});
    let stop = json!({
        "oneOf": [
            {"type": "string", "minLength": 1, "maxLength": STOP_CHARACTERS},
            {"type": "array", "maxItems": STOPS, "items": {"type": "string", "minLength": 1, "maxLength": STOP_CHARACTERS}},
            {"type": "null"},
        ],
    });
    let ids = json!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}});
    let prompt = json!({
        "oneOf": [
            {"type": "string"},
            {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string"}},
            ids,
            {"type": "array", "minItems": 1, "maxItems": 1, "items": ids},
        ],
    });
    vec![
        ("ChatRequest", "messages", json!({"type": "array", "minItems": 1, "maxItems": MESSAGES, "items": message()})),
        ("ChatRequest", "documents", list(document.clone())),
        ("ChatRequest", "top_k", top_k.clone()),
        ("ChatRequest", "stop", stop.clone()),
        ("CompletionRequest", "prompt", prompt),
        ("CompletionRequest", "documents", list(document)),
        ("CompletionRequest", "top_k", top_k),
        ("CompletionRequest", "stop", stop),
        ("ChunksRequest", "documents", needed),
    ]
}

/// Parameters that are known for values only that ask for nothing.
pub fn asking_nothing(name: &str) -> Value {
    match name {
        "n" | "best_of" => json!({"type": ["integer", "null"], "enum": [1, null]}),
        "tools" | "functions" | "logit_bias" | "audio" | "prediction" => {
            json!({"type": ["array", "object", "null"], "maxItems": 0, "maxProperties": 0})
        }
        "tool_choice" | "function_call" => json!({"enum": ["none", "auto", null]}),
        "frequency_penalty" | "presence_penalty" => json!({"enum": [0, null]}),
        "response_format" => {
            json!({"type": ["object", "null"], "required": ["type"], "properties": {"type": {"const": "text"}}})
        }
        "echo" => json!({"enum": [false, null]}),
        "suffix" => json!({"enum": ["", null]}),
        _ => json!({"type": "null"}),
    }
}
