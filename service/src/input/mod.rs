//! What clients send, in OpenAI's forms, with `documents` and a `tributary` object beside them.
//!
//! What is not honoured is refused and named; it is never passed over in silence.

pub mod chat;
pub mod chunks;
pub mod completion;
mod content;
pub mod documents;
mod generation;
#[cfg(test)]
pub mod kit;
pub mod others;
mod terms;

use serde::Deserialize;
use tributary_coordinator::{EvictionWish, Prepared, RequestSettings};
use tributary_engine::Client;
use tributary_methods::{EvictChoice, KEEP, Keep, MethodSpec};
use tributary_protocol::Importance;

use crate::body::Fields;
use crate::error::ApiError;
use crate::output::Form;

pub use self::generation::Generation;
#[cfg(test)]
pub use self::generation::{STOP_CHARACTERS, STOPS, StreamOptions};
pub use self::terms::Terms;

/// What a request asks of the engine, as its body has it.
pub trait Asked: Sized + Send + 'static {
    /// Reads a body.
    ///
    /// # Errors
    /// What cannot be, or is not known, by its name.
    fn read(fields: Fields, terms: &Terms<'_>) -> Result<Self, ApiError>;

    /// Its prompts as token ids.
    ///
    /// # Errors
    /// A text or an id that cannot be.
    fn prepare(&self, client: &Client) -> Result<Vec<Prepared>, ApiError>;

    /// Number of its documents that have no text.
    fn empty_documents(&self) -> usize;

    /// The settings for one of its prompts, `of` so many rows, and the answer of this number to it.
    ///
    /// # Errors
    /// A prompt that is too long.
    fn settings(&self, prepared: &Prepared, of: (usize, usize), terms: &Terms<'_>)
    -> Result<RequestSettings, ApiError>;

    /// Number of answers to each prompt.
    fn copies(&self) -> usize {
        1
    }
}

/// A request that a text answers.
pub trait Completed: Asked {
    /// The form of its answer.
    const FORM: Form;

    /// How the answer is made and given.
    fn generation(&self) -> &Generation;

    /// The text of a prompt, where answers may repeat it and it did not come as token ids.
    fn echoed_text(&self, _prompt: usize) -> Option<&str> {
        None
    }
}

/// How a prompt is prefilled; the server's own choice where absent.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// Name of the method, as `GET /v1/status` lists them, and its options: `samkv:theta=0.5` (`tributary methods NAME` lists them).
    pub method: Option<String>,
    /// Share of the context to recompute.
    #[cfg_attr(test, schema(minimum = 0, maximum = 1))]
    pub ratio: Option<f64>,
    /// Whether chunks are reordered by importance.
    pub reorder: Option<bool>,
    /// What ranks send each other during recompute.
    pub exchange: Option<String>,
    /// How rows of the prompt are chosen that decoding keeps, with `keep`: a name as `--evict` has it, or `none`, where all are kept.
    pub evict: Option<String>,
    /// Rows that each KV head keeps of the prompt in a layer, as a number, or as a share such as `30%`.
    pub keep: Option<Rows>,
    /// Whether the answer says which tokens of the context were recomputed, and what each rank did when.
    pub explain: Option<bool>,
}

impl Choices {
    /// Takes them from a body, and checks them; gives the server's settings with them.
    fn take(fields: &mut Fields, terms: &Terms<'_>) -> Result<(RequestSettings, bool), ApiError> {
        let choices: Choices = fields.take("tributary")?.unwrap_or_default();
        let mut settings = terms.settings.clone();
        let of = |name: &'static str| move |error: String| ApiError::parameter(format!("tributary.{name}"), error);
        if let Some(method) = &choices.method {
            let spec: MethodSpec = method.parse().map_err(of("method"))?;
            if !terms.limits.methods.allows(spec.method) {
                return Err(of("method")(format!("`{}` is not allowed by this service", spec.method.name)));
            }
            settings = settings.apply(&spec);
            // A client's own bound is for its prompt, whose length it knows.
            settings.eviction.at_most &= !spec.has(&KEEP);
        }
        if let Some(ratio) = choices.ratio {
            if !(0.0..=1.0).contains(&ratio) {
                return Err(of("ratio")(format!("ratio {ratio}: must be from 0 to 1")));
            }
            settings.ratio = Some(ratio);
        }
        if let Some(exchange) = &choices.exchange {
            settings.exchange = Some(exchange.parse().map_err(of("exchange"))?);
        }
        if let Some(reorder) = choices.reorder {
            settings.reorder = reorder.then_some(Importance::Mass);
        }
        if let Some(eviction) = evicted(&choices, settings.eviction)? {
            settings.eviction = eviction;
        }
        let explains = choices.explain.unwrap_or(false);
        settings.returns.scores |= explains;
        Ok((settings.without_idle_order().without_idle_compression(), explains))
    }
}

/// Rows that are kept: a number, or a share.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "a number of rows, or a share such as \"30%\"")]
pub enum Rows {
    /// So many.
    Count(usize),
    /// A share of the prompt's.
    Share(String),
}

/// What decoding keeps, where a request says so: both choices, or one with the server's other one; nothing where it says neither.
fn evicted(choices: &Choices, served: EvictionWish) -> Result<Option<EvictionWish>, ApiError> {
    let of = |name: &str, error: String| ApiError::parameter(format!("tributary.{name}"), error);
    let (method, window) = match choices.evict.as_deref() {
        None if choices.keep.is_none() => return Ok(None),
        None => (served.method, served.window),
        Some("none") if choices.keep.is_none() => return Ok(Some(EvictionWish::default())),
        Some("none") => return Err(of("keep", "keep: goes with a way to evict".to_owned())),
        Some(text) => {
            let choice: EvictChoice = text.parse().map_err(|error| of("evict", error))?;
            (Some(choice.method), choice.window.or(served.window))
        }
    };
    let keep = match &choices.keep {
        None => served.keep,
        Some(Rows::Count(rows)) => Some(Keep::Rows(*rows)),
        Some(Rows::Share(share)) => Some(share.parse().map_err(|error| of("keep", error))?),
    };
    Ok(Some(EvictionWish { method, keep, window, at_most: choices.keep.is_none() }))
}

/// Checks that a body that names a model names the one that is served.
fn check_model(fields: &mut Fields, served: &str) -> Result<(), ApiError> {
    match fields.take::<String>("model")? {
        Some(model) if model != served => Err(ApiError::unknown_model(&model, served)),
        _ => Ok(()),
    }
}
