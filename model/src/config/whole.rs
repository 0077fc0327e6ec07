//! A config of text and pictures: its text part, as the config of a model of text alone.

use serde_json::Value;

use crate::{families, rope_config};

/// A config of text and pictures.
pub(super) struct Whole {
    /// Name in `architectures`.
    pub name: String,
    /// The config, without what was taken into the text part.
    pub value: Value,
}

/// The config of the text part, and the whole if it is a model of text and pictures; else the
/// config itself. Tokens and tied embeddings may be stated for the whole.
///
/// # Errors
/// Returns a message if the text part is missing.
pub(super) fn text_part(mut value: Value) -> Result<(Value, Option<Whole>), String> {
    let name = value["architectures"][0].as_str().unwrap_or_default().to_owned();
    let tower = families::with_tower(&name);
    if tower.is_none() && !families::WITH_PICTURES.contains(&&*name) {
        return Ok((value, None));
    }
    let mut text = match tower {
        // Older files have the text's fields on top.
        Some(_) if value["text_config"].is_null() => value.clone(),
        _ => value["text_config"].take(),
    };
    let Some(fields) = text.as_object_mut() else {
        return Err(format!("`{name}` lacks `text_config`, the config of its text part"));
    };
    fields.remove("architectures");
    for key in ["tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"] {
        // Where pictures are read, the whole decides on tied embeddings, as in transformers.
        let by_whole = tower.is_some() && key == "tie_word_embeddings";
        if (by_whole || fields.get(key).is_none_or(Value::is_null)) && !value[key].is_null() {
            fields.insert(key.to_owned(), value[key].take());
        }
    }
    if let Some(tower) = tower {
        fields.insert("architectures".to_owned(), serde_json::json!([tower.text]));
        rope_config::without_mrope(&mut text);
    }
    Ok((text, Some(Whole { name, value })))
}
