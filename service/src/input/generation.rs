//! What chats and texts have in common: how long an answer may be, how its tokens are drawn, where it ends, how it is given.

use serde::Deserialize;
use serde_json::Value;
use tributary_coordinator::RequestSettings;

use crate::body::Fields;
use crate::delivery::Delivery;
use crate::error::ApiError;

/// Stop texts at most.
pub const STOPS: usize = 4;

/// Characters of a stop text at most: each token's text is held against each beginning of it.
pub const STOP_CHARACTERS: usize = 1000;

/// What a stream has besides tokens.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether the last part tells how many tokens there were.
    pub include_usage: Option<bool>,
    /// Not supported: only `false`.
    pub include_obfuscation: Option<bool>,
}

/// A text, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum Texts {
    One(String),
    Several(Vec<String>),
}

/// How an answer is made and given.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The engine's settings.
    pub settings: RequestSettings,
    /// How it is given.
    pub delivery: Delivery,
}

impl Generation {
    /// Takes it from a body, beside the choices of how the prompt is prefilled. `limits` are the names of the number of tokens, the
    /// first of which counts.
    ///
    /// # Errors
    /// A value that cannot be.
    pub fn take(
        fields: &mut Fields,
        (mut settings, explains): (RequestSettings, bool),
        limits: &[&str],
    ) -> Result<Self, ApiError> {
        for name in limits.iter().rev() {
            if let Some(max_tokens) = fields.integer(name, 1, u64::MAX)? {
                settings.max_tokens = usize::try_from(max_tokens).unwrap_or(usize::MAX);
            }
        }
        let sampling = &mut settings.sampling;
        let temperature = fields.number("temperature", |found| (0.0..=2.0).contains(&found), "from 0 to 2")?;
        sampling.temperature = temperature.unwrap_or(sampling.temperature);
        let top_p = fields.number("top_p", |found| found > 0.0 && found <= 1.0, "above 0 and at most 1")?;
        sampling.top_p = top_p.unwrap_or(sampling.top_p);
        sampling.seed = fields.integer("seed", 0, u64::MAX)?.unwrap_or(sampling.seed);
        sampling.top_k = top_k(fields)?.unwrap_or(sampling.top_k);
        let streams = fields.take("stream")?.unwrap_or(false);
        let includes_usage = includes_usage(fields, streams)?;
        let stops = stops(fields)?;
        let delivery = Delivery { streams, includes_usage, has_logprobs: false, explains, stops };
        Ok(Self { settings, delivery })
    }

    /// Asks for log-probabilities, and for those of so many of the likeliest tokens.
    pub fn with_logprobs(&mut self, top: u32) {
        self.settings.returns.logprobs = Some(top);
        self.delivery.has_logprobs = true;
    }
}

/// The likeliest tokens that are drawn from; 0 for all.
fn top_k(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = "must be a whole number of at least 1; 0, -1 and false turn it off";
    let Some(value) = fields.take::<Value>("top_k")? else { return Ok(None) };
    if value == Value::Bool(false) {
        return Ok(Some(0));
    }
    match value.as_f64().filter(|number| number.fract() == 0.0 && *number >= -1.0) {
        // There are fewer tokens than u32 has numbers.
        Some(number) => Ok(Some(number.max(0.0) as u32)),
        None => Err(ApiError::parameter("top_k", format!("`top_k` {wanted}"))),
    }
}

fn includes_usage(fields: &mut Fields, streams: bool) -> Result<bool, ApiError> {
    let refused = |message: &str| Err(ApiError::parameter("stream_options", message));
    let Some(options) = fields.take::<StreamOptions>("stream_options")? else { return Ok(false) };
    if !streams {
        return refused("`stream_options` goes with `stream` only");
    }
    if options.include_obfuscation == Some(true) {
        return refused("`stream_options.include_obfuscation` is not supported");
    }
    Ok(options.include_usage.unwrap_or(false))
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop")? {
        None => Vec::new(),
        Some(Texts::One(stop)) => vec![stop],
        Some(Texts::Several(stops)) => stops,
    };
    if stops.len() > STOPS || stops.iter().any(String::is_empty) {
        return Err(ApiError::parameter("stop", format!("`stop` has at most {STOPS} texts, none of them empty")));
    }
    if stops.iter().any(|stop| stop.chars().count() > STOP_CHARACTERS) {
        let message = format!("a text of `stop` has at most {STOP_CHARACTERS} characters");
        return Err(ApiError::parameter("stop", message));
    }
    Ok(stops)
}
