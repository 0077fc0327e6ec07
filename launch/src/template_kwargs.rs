//! `--chat-template-kwargs`: values that a chat template reads.

use std::str::FromStr;

use serde_json::{Map, Value};
use tributary_coordinator::OWN_NAMES;

/// Values that a chat template reads.
#[derive(Debug, Clone, Default)]
pub struct TemplateKwargs(pub Map<String, Value>);

impl FromStr for TemplateKwargs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let values: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("must be a JSON object: {error}"))?;
        match OWN_NAMES.iter().find(|name| values.contains_key(**name)) {
            Some(name) => Err(format!("`{name}` is the request's own")),
            None => Ok(Self(values)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_an_object_without_the_requests_own() {
        let values = |text: &str| text.parse::<TemplateKwargs>();
        assert_eq!(values(r#"{"enable_thinking": false}"#).expect("an object").0["enable_thinking"], false);
        for wrong in ["", "5", "[]", "{", r#"{"messages": []}"#, r#"{"tools": []}"#] {
            assert!(values(wrong).is_err(), "{wrong}");
        }
    }
}
