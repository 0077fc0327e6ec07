//! Parameters that change no answer here: those that never do, and those that ask for nothing by
//! their value. Any other value of the latter is refused by name.

use serde_json::{Map, Value};

use crate::body::Fields;
use crate::error::ApiError;

/// Whether a value asks for nothing.
type AsksNothing = fn(&Value) -> bool;

/// Parameters of chats that would change an answer and are not honoured, with the values that ask
/// for nothing.
pub const OF_CHATS: [(&str, AsksNothing); 10] = [
    ("tools", is_empty),
    ("tool_choice", is_none),
    ("functions", is_empty),
    ("function_call", is_none),
    ("audio", is_empty),
    ("prediction", is_empty),
    ("modalities", is_text_alone),
    ("web_search_options", is_empty),
    ("add_special_tokens", is_off),
    ("chat_template", is_empty),
];

/// The same of text completions.
pub const OF_TEXTS: [(&str, AsksNothing); 2] = [("suffix", is_empty), ("add_special_tokens", is_on)];

/// The same of both. Many are vLLM's, whose load generators send them always.
pub const OF_BOTH: [(&str, AsksNothing); 24] = [
    ("response_format", is_text),
    ("use_beam_search", is_off),
    ("early_stopping", is_off),
    ("length_penalty", is_one),
    ("truncate_prompt_tokens", is_no_bound),
    ("skip_special_tokens", is_on),
    ("detokenize", is_on),
    ("return_tokens_as_token_ids", is_off),
    ("return_token_ids", is_off),
    ("priority", is_zero),
    ("bad_words", is_empty),
    ("allowed_token_ids", is_empty),
    ("logits_processors", is_empty),
    ("logprob_token_ids", is_empty),
    ("structured_outputs", is_empty),
    ("guided_json", is_empty),
    ("guided_regex", is_empty),
    ("guided_choice", is_empty),
    ("guided_grammar", is_empty),
    ("kv_transfer_params", is_empty),
    ("mm_processor_kwargs", is_empty),
    ("vllm_xargs", is_empty),
    ("typical_p", is_one),
    ("cache_salt", is_empty),
];

/// Parameters that change no answer here, with any value.
pub const WITHOUT_EFFECT: [&str; 13] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "spaces_between_special_tokens",
    "verbosity",
    "moderation",
    "extra_headers",
];

/// Bytes of a value that may ask for nothing: nothing is made of a longer one, which does not.
const LONGEST_NOTHING: usize = 4096;

/// Known parameters that change the answer. An unknown one that looks like a misspelling of one of
/// these is refused even where unknown ones are ignored.
const MEANT: [&str; 4] = ["documents", "messages", "prompt", "tributary"];

fn is_empty(value: &Value) -> bool {
    value == "" || value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
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

fn is_on(value: &Value) -> bool {
    *value == Value::Bool(true)
}

/// vLLM's word for a prompt that is not cut.
fn is_no_bound(value: &Value) -> bool {
    value.as_i64() == Some(-1)
}

fn is_text(value: &Value) -> bool {
    value.get("type").is_some_and(|kind| kind == "text")
}

fn is_text_alone(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|kind| kind == "text"))
}

/// Takes fields that change no answer, and refuses those that are not honoured. Also refuses the
/// rest, unless it `ignores_unknown` fields.
///
/// # Errors
/// Returns an error if a parameter is unknown or not honoured.
pub fn finish(mut fields: Fields, not_honoured: &[(&str, AsksNothing)], ignores_unknown: bool) -> Result<(), ApiError> {
    for (name, asks_nothing) in not_honoured.iter().chain(&OF_BOTH) {
        let refused = || ApiError::parameter(*name, format!("`{name}` is not supported"));
        if fields.length(name) > LONGEST_NOTHING {
            return Err(refused());
        }
        if fields.take::<Value>(name)?.is_some_and(|value| !asks_nothing(&value)) {
            return Err(refused());
        }
    }
    WITHOUT_EFFECT.iter().for_each(|name| fields.pass_over(name));
    if ignores_unknown { fields.end_but_near(&MEANT) } else { fields.end() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(json: &str, ignores_unknown: bool) -> Result<(), ApiError> {
        finish(Fields::from_json(json.as_bytes()).expect("an object"), &OF_CHATS, ignores_unknown)
    }

    #[test]
    fn values_that_ask_for_nothing_pass_and_others_are_named() {
        let nothing = r#"{"tools": [], "tool_choice": "none", "modalities": ["text"], "length_penalty": 1.0, "priority": 0,
            "use_beam_search": false, "skip_special_tokens": true, "truncate_prompt_tokens": -1, "guided_json": null,
            "spaces_between_special_tokens": false, "request_id": "x", "response_format": {"type": "text"}}"#;
        assert_eq!(finished(nothing, false), Ok(()));
        for (json, name) in [
            (r#"{"tools": [{}]}"#, "tools"),
            (r#"{"length_penalty": 1.2}"#, "length_penalty"),
            (r#"{"truncate_prompt_tokens": 100}"#, "truncate_prompt_tokens"),
            (r#"{"modalities": ["text", "audio"]}"#, "modalities"),
            (r#"{"guided_regex": "a+"}"#, "guided_regex"),
        ] {
            for ignores_unknown in [false, true] {
                let error = finished(json, ignores_unknown).expect_err(json);
                assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)), "{json}");
            }
        }
    }

    #[test]
    fn a_long_value_is_refused_before_anything_is_made_of_it() {
        let long = format!(r#"{{"tools": [{}]}}"#, vec!["{}"; 10_000].join(","));
        assert_eq!(finished(&long, true).expect_err("refused").param.as_deref(), Some("tools"));
    }

    #[test]
    fn unknown_fields_pass_only_where_they_may_and_never_misspelt_documents() {
        assert_eq!(finished(r#"{"colour": 1}"#, false).expect_err("refused").param.as_deref(), Some("colour"));
        assert_eq!(finished(r#"{"colour": 1, "mirostat": 2, "docket": 3}"#, true), Ok(()));
        for near in ["document", "Documents", "docments", "dcouments", "docs", "doc", "tributry", "message", "promt"] {
            let error = finished(&format!(r#"{{"{near}": []}}"#), true).expect_err(near);
            assert!(error.message.contains("did you mean"), "{near}: {error:?}");
        }
    }
}
