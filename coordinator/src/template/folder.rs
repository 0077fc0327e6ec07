//! Template and special tokens of a model folder.
//!
//! Special tokens may be in several files. As in transformers, those of `special_tokens_map.json`
//! count only if `tokenizer_config.json` does not mention the token.

use std::path::Path;

use serde_json::{Map, Value};

use super::Template;
use crate::request::{json_error, read_of_model};
use crate::{Error, Result};

/// Names of special tokens that templates may use.
pub(crate) const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl Template {
    /// Reads a model folder's template: `chat_template.jinja`, or `chat_template` in
    /// `tokenizer_config.json` (of several, the one named `default`). `None` if the model has none.
    ///
    /// # Errors
    /// Returns [`Error::Plan`] or [`Error::Json`] for broken files, and
    /// [`Error::Template`] if there are several templates and none is the default.
    pub fn from_folder(path: &Path) -> Result<Option<Self>> {
        template(path)
    }
}

/// The template of a model folder.
fn template(folder: &Path) -> Result<Option<Template>> {
    let config = object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let file = folder.join("chat_template.jinja");
    let alone = folder.join("chat_template.json");
    let source = if file.exists() {
        Some(read_of_model(&file)?)
    } else if let Some(own) = object(&alone)?.filter(|own| own.get("chat_template").is_some_and(|own| !own.is_null())) {
        named(&own)?
    } else {
        named(&config)?
    };
    let tokens = special_tokens(folder)?;
    Ok(source.map(|source| Template { source, tokens }))
}

/// Names and texts of a model folder's special tokens.
///
/// # Errors
/// As [`Template::from_folder`].
pub(crate) fn special_tokens(folder: &Path) -> Result<Vec<(String, String)>> {
    let config = object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let map = object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let token = |name: &str| if config.contains_key(name) { text(&config, name) } else { text(&map, name) };
    Ok(SPECIAL_TOKENS.iter().filter_map(|name| Some(((*name).to_owned(), token(name)?))).collect())
}

/// The object in a JSON file; `None` without a file.
pub(crate) fn object(path: &Path) -> Result<Option<Map<String, Value>>> {
    if !path.exists() {
        return Ok(None);
    }
    serde_json::from_str(&read_of_model(path)?).map(Some).map_err(|error| json_error(&error, path))
}

/// The template in a tokenizer's configuration: a string, or a list of named ones.
fn named(config: &Map<String, Value>) -> Result<Option<String>> {
    let several = match config.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(source)) => return Ok(Some(source.clone())),
        Some(other) => other.as_array(),
    };
    let default = several.into_iter().flatten().find(|entry| entry["name"] == "default");
    match default.and_then(|entry| entry["template"].as_str()) {
        Some(source) => Ok(Some(source.to_owned())),
        None => Err(Error::Template("several, and none is named `default`".into())),
    }
}

/// A special token's text: a string, or an object with `content`.
fn text(config: &Map<String, Value>, name: &str) -> Option<String> {
    let value = config.get(name)?;
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}
