//! Parameters of OpenAI's that are refused, but for values that ask for nothing, and those that change no answer here.

use serde_json::{Map, Value};

use crate::body::Fields;
use crate::error::ApiError;

/// Whether a value asks for nothing.
type AsksNothing = fn(&Value) -> bool;

/// Parameters of chats that would change an answer and are not honoured, with the values that ask for nothing.
pub const OF_CHATS: [(&str, AsksNothing); 11] = [
    ("tools", is_empty),
    ("tool_choice", is_none),
    ("functions", is_empty),
    ("function_call", is_none),
    ("n", is_one),
    ("logit_bias", is_empty),
    ("frequency_penalty", is_zero),
    ("presence_penalty", is_zero),
    ("response_format", is_text),
    ("audio", is_empty),
    ("prediction", is_empty),
];

/// The same of text completions.
pub const OF_TEXTS: [(&str, AsksNothing); 7] = [
    ("n", is_one),
    ("best_of", is_one),
    ("echo", is_off),
    ("suffix", is_no_text),
    ("logit_bias", is_empty),
    ("frequency_penalty", is_zero),
    ("presence_penalty", is_zero),
];

/// Parameters that change no answer here, whatever they are.
pub const WITHOUT_EFFECT: [&str; 8] = [
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
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

fn is_none(value: &Value) -> bool {
    value == "none" || value == "auto"
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_off(value: &Value) -> bool {
    *value == Value::Bool(false)
}

fn is_no_text(value: &Value) -> bool {
    value == ""
}

fn is_text(value: &Value) -> bool {
    value.get("type").is_some_and(|kind| kind == "text")
}

/// Takes what changes no answer, refuses what is not honoured, and whatever else is left.
///
/// # Errors
/// A parameter that is not honoured, or not known.
pub fn finish(mut fields: Fields, not_honoured: &[(&str, AsksNothing)]) -> Result<(), ApiError> {
    for (name, asks_nothing) in not_honoured {
        if fields.take::<Value>(name)?.is_some_and(|value| !asks_nothing(&value)) {
            return Err(ApiError::parameter(*name, format!("`{name}` is not supported")));
        }
    }
    WITHOUT_EFFECT.iter().for_each(|name| fields.pass_over(name));
    fields.end()
}
