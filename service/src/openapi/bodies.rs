//! Bodies of requests for OpenAPI's description. Their fields are those that `input` reads; a test
//! compares them.

use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::input::chat::MESSAGES;
use crate::input::completion::PROMPTS;
use crate::input::{Choices, STOP_CHARACTERS, STOPS, StreamOptions};

/// A body that asks for an answer: its own fields, and those that all of them have.
macro_rules! generated {
    ($(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        #[derive(ToSchema)]
        #[allow(dead_code, reason = "it is described, not made")]
        $(#[$about])*
        pub struct $name {
            $($own)*
            /// The model's name, as `GET /v1/models` gives it.
            model: Option<String>,
            /// Choices of the prompt's prefill.
            tributary: Option<Choices>,
            /// Whether the answer comes token by token.
            stream: Option<bool>,
            /// Further contents of a stream besides tokens; with `stream` only.
            stream_options: Option<StreamOptions>,
            /// 0 takes the likeliest token.
            #[schema(minimum = 0, maximum = 2)]
            temperature: Option<f64>,
            /// Draws from the smallest set of tokens with at least this probability; 0 takes the
            /// likeliest.
            #[schema(minimum = 0, maximum = 1)]
            top_p: Option<f64>,
            /// Number of likeliest tokens to draw from; 0, -1 and false turn the limit off.
            #[schema(value_type = Option<Object>)]
            top_k: Option<Value>,
            /// Draws from tokens with at least this share of the likeliest token's probability.
            #[schema(minimum = 0, maximum = 1)]
            min_p: Option<f64>,
            /// Divides positive logits of tokens of prompt and answer, and multiplies negative
            /// ones; 1 for none.
            #[schema(exclusive_minimum = 0, maximum = 10)]
            repetition_penalty: Option<f64>,
            /// Subtracted from the logit of every token that the answer has already.
            #[schema(minimum = -2, maximum = 2)]
            presence_penalty: Option<f64>,
            /// Subtracted from a token's logit once for each time that the answer has it.
            #[schema(minimum = -2, maximum = 2)]
            frequency_penalty: Option<f64>,
            /// Numbers from -100 to 100 that are added to logits, by token id.
            #[schema(value_type = Option<std::collections::BTreeMap<String, f64>>)]
            logit_bias: Option<Value>,
            /// Seed of the draws.
            seed: Option<i64>,
            /// Texts that end the answer: one, or several. They are not part of it.
            #[schema(value_type = Option<Object>)]
            stop: Option<Value>,
            /// Whether the text that ends the answer is part of it.
            include_stop_str_in_output: Option<bool>,
            /// Token ids that end the answer, besides the model's own.
            #[schema(max_items = 300)]
            stop_token_ids: Option<Vec<u32>>,
            /// Whether the model's own end tokens do not end the answer.
            ignore_eos: Option<bool>,
            /// Tokens of the answer before which none is drawn that would end it.
            #[schema(minimum = 0, maximum = 4294967295_u64)]
            min_tokens: Option<u64>,
            /// Number of answers to each prompt; each has its own seed.
            #[schema(minimum = 1, maximum = 64)]
            n: Option<u64>,
            /// As `n`.
            #[schema(minimum = 1, maximum = 64)]
            best_of: Option<u64>,
            /// Log-probabilities of the prompt's tokens, and of this number of likeliest tokens in
            /// each place; not with `stream`. In a request with documents they cover the text after
            /// the documents.
            #[schema(minimum = 0, maximum = 20)]
            prompt_logprobs: Option<u64>,
        }
    };
}

generated! {
    /// A chat completion request. Unlisted fields are refused.
    #[schema(as = ChatRequest)]
    pub struct ChatBody {
        /// Messages, as the model's chat template renders them. Documents come first in the user's
        /// first message: the text before them shapes every chunk, and later turns follow them.
        /// Pictures of the user's first and last message are documents too, `data:` URLs of PNG,
        /// JPEG or WebP files; they are never fetched.
        #[schema(value_type = Vec<Object>, min_items = 1)]
        messages: Vec<Value>,
        /// The context, in its order. Absent: the messages are the context, but for their last 32
        /// tokens.
        #[schema(value_type = Option<Vec<Object>>)]
        documents: Option<Vec<Value>>,
        /// Tokens to generate at most; the service's own number where absent, or 2048.
        #[schema(minimum = 0)]
        max_tokens: Option<u64>,
        /// The same by its newer name, which counts.
        #[schema(minimum = 0)]
        max_completion_tokens: Option<u64>,
        /// Whether each token comes with its log-probability.
        logprobs: Option<bool>,
        /// The likeliest tokens that come with each, with `logprobs` only.
        #[schema(minimum = 0, maximum = 20)]
        top_logprobs: Option<u64>,
        /// Values that the chat template reads.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<Value>,
        /// One of them alone: whether the model thinks before it answers.
        enable_thinking: Option<bool>,
        /// Another: how much it thinks.
        reasoning_effort: Option<String>,
        /// Whether the model continues the last message.
        continue_final_message: Option<bool>,
        /// Whether the prompt ends where an answer begins: false ends it after the last message.
        add_generation_prompt: Option<bool>,
        /// Whether reasoning comes as `reasoning_content`, apart from `content`; as the service
        /// does where absent.
        separate_reasoning: Option<bool>,
        /// Whether reasoning comes at all.
        include_reasoning: Option<bool>,
    }
}

generated! {
    /// A text completion request. Unlisted fields are refused.
    #[schema(as = CompletionRequest)]
    pub struct CompletionBody {
        /// A text, a list of token ids, or a list of such. No chat template is put around them.
        #[schema(value_type = Object)]
        prompt: Value,
        /// The context, in its order. Absent: the prompt is the context, but for its last 32
        /// tokens.
        #[schema(value_type = Option<Vec<Object>>)]
        documents: Option<Vec<Value>>,
        /// Tokens to generate at most; the service's own number where absent, or 16.
        #[schema(minimum = 0)]
        max_tokens: Option<u64>,
        /// The likeliest tokens that come with each, with their log-probabilities.
        #[schema(minimum = 0, maximum = 20)]
        logprobs: Option<u64>,
        /// Whether the prompt precedes the answer; with `logprobs` its tokens have
        /// log-probabilities too, and there is no `stream`.
        echo: Option<bool>,
    }
}

/// Documents that are to be prefilled ahead of use.
#[derive(ToSchema)]
#[schema(as = ChunksRequest)]
#[allow(dead_code, reason = "it is described, not made")]
pub struct ChunksBody {
    /// The documents.
    #[schema(value_type = Vec<Object>, min_items = 1)]
    documents: Vec<Value>,
    /// System text of the chats that will use them: it precedes and shapes them.
    system: Option<String>,
    /// The model's name, as `GET /v1/models` gives it.
    model: Option<String>,
}

/// Parts of a content: texts and pictures.
fn parts() -> Value {
    let url = json!({"type": "string", "pattern": "^[Dd][Aa][Tt][Aa]:"});
    let image_url = json!({
        "type": "object",
        "required": ["url"],
        "properties": {"url": url, "detail": {"enum": ["auto", "high", "low", null]}},
        "additionalProperties": false,
    });
    json!({
        "type": "array",
        "items": {
            "oneOf": [
                {
                    "type": "object",
                    "required": ["type", "text"],
                    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                },
                {
                    "type": "object",
                    "required": ["type", "image_url"],
                    "properties": {"type": {"const": "image_url"}, "image_url": image_url},
                },
            ],
        },
    })
}

/// A message of a chat.
fn message() -> Value {
    json!({
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {
                "oneOf": [
                    {"type": "null"},
                    {"type": "string"},
                    parts(),
                ],
            },
            "name": {},
            "id": {},
            "reasoning_content": {},
            "reasoning": {},
            "thinking": {},
            "tool_call_id": {},
            "refusal": {},
            "audio": {"type": "null"},
            "function_call": {"type": "null"},
            "tool_calls": {},
            "annotations": {},
        },
        "additionalProperties": false,
    })
}

/// The schemas that a type of Rust does not say: forms of one field, and values that ask for
/// nothing.
pub fn by_hand() -> Vec<(&'static str, &'static str, Value)> {
    let list = |item: Value| json!({"type": ["array", "null"], "items": item});
    let (title, unread) = (json!({"type": ["string", "null"]}), json!({}));
    let data = json!({
        "oneOf": [
            {"type": "string"},
            {
                "type": "object",
                "required": ["text"],
                "properties": {"text": {"type": "string"}, "title": title},
                "additionalProperties": false,
            },
        ],
    });
    let object = |text: &str, schema: Value| {
        json!({
            "type": "object",
            "required": [text],
            "properties": {text: schema, "title": title, "id": unread, "metadata": unread, "score": unread, "type": unread,
                "url": unread, "source": unread},
            "additionalProperties": false,
        })
    };
    let text = json!({"type": "string"});
    let document = json!({"oneOf": [text, object("text", text.clone()), object("page_content", text.clone()), object("data", data),
        object("image", json!({"type": "string", "pattern": "^[Dd][Aa][Tt][Aa]:"})), object("content", parts())]});
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
            {"type": "array", "minItems": 1, "maxItems": PROMPTS, "items": {"type": "string"}},
            ids,
            {"type": "array", "minItems": 1, "maxItems": PROMPTS, "items": ids},
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
        "tool_choice" | "function_call" => json!({"enum": ["none", "auto", null]}),
        "length_penalty" | "typical_p" => json!({"enum": [1, null]}),
        "priority" => json!({"enum": [0, null]}),
        "truncate_prompt_tokens" => json!({"enum": [-1, null]}),
        "response_format" => {
            json!({"type": ["object", "null"], "required": ["type"], "properties": {"type": {"const": "text"}}})
        }
        "modalities" => json!({"type": ["array", "null"], "items": {"const": "text"}}),
        "use_beam_search" | "early_stopping" | "return_tokens_as_token_ids" | "return_token_ids" => {
            json!({"enum": [false, null]})
        }
        "skip_special_tokens" | "detokenize" => json!({"enum": [true, null]}),
        "add_special_tokens" => json!({"type": ["boolean", "null"]}),
        _ => json!({"type": ["array", "object", "string", "null"], "maxItems": 0, "maxProperties": 0, "maxLength": 0}),
    }
}
