//! Requests of clients, in OpenAI's forms, with `documents` and a `tributary` object added.
//!
//! A parameter that is not honoured is refused by name, never silently ignored.

pub mod chat;
pub mod chunks;
pub mod completion;
mod content;
pub mod documents;
mod generation;
#[cfg(test)]
pub mod kit;
pub mod others;
pub mod pictures;
pub mod prefill;
mod terms;

use serde::Deserialize;
use tributary_coordinator::{Document, Prepared};
use tributary_engine::Client;
use tributary_methods::{EvictChoice, KEEP, Keep, MethodSpec};
use tributary_planner::{Conversation, EvictionWish, RequestSettings};
use tributary_protocol::Importance;

use crate::body::Fields;
use crate::error::ApiError;
use crate::output::Form;

pub use self::generation::Generation;
#[cfg(test)]
pub use self::generation::{STOP_CHARACTERS, STOPS, StreamOptions};
pub use self::terms::Terms;

/// A request to the engine, as its body has it.
pub trait Asked: Sized + Send + 'static {
    /// Reads a body.
    ///
    /// # Errors
    /// Returns the name of the field that is unknown or out of range.
    fn read(fields: Fields, terms: &Terms<'_>) -> Result<Self, ApiError>;

    /// Its prompts as token ids.
    ///
    /// # Errors
    /// Returns an error if a text or an id is impossible.
    fn prepare(&self, client: &Client) -> Result<Vec<Prepared>, ApiError>;

    /// Its documents, with those that its messages have become.
    fn documents(&self) -> &[Document];

    /// Number of its documents that have no text.
    fn empty_documents(&self) -> usize;

    /// Settings for one of its prompts. `of` holds the number of its rows and the number of the
    /// answer to it.
    ///
    /// # Errors
    /// Returns an error if the prompt is too long.
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

    /// Generation and delivery of the answer.
    fn generation(&self) -> &Generation;

    /// The text of a prompt, where answers may repeat it and it did not come as token ids.
    fn echoed_text(&self, _prompt: usize) -> Option<&str> {
        None
    }
}

/// Choices of a prompt's prefill; the server's own where absent.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// Name of the method, as `GET /v1/status` lists them, and its options: `samkv:theta=0.5`
    /// (`tributary methods NAME` lists them).
    pub method: Option<String>,
    /// Share of the context to recompute.
    #[cfg_attr(test, schema(minimum = 0, maximum = 1))]
    pub ratio: Option<f64>,
    /// Whether chunks are reordered by importance.
    pub reorder: Option<bool>,
    /// Exchange between ranks during recompute.
    pub exchange: Option<String>,
    /// Eviction: selects the rows of the prompt that decoding keeps, together with `keep`. `NAME`
    /// or `NAME:window=N` as for `--evict`, or `none` to keep all.
    pub evict: Option<String>,
    /// Rows that each KV head keeps of the prompt in a layer, as a number, or as a share such as
    /// `30%`.
    pub keep: Option<Rows>,
    /// What the request does with earlier turns of its conversation, as for `--conversation`:
    /// `reuse`, `recompute` or `off`.
    pub conversation: Option<String>,
    /// Whether the answer has the recomputed tokens of the context, and a timeline of each rank.
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
        if let Some(conversation) = &choices.conversation {
            let wanted = conversation.parse::<Conversation>();
            settings.conversation = wanted.map_err(|error| of("conversation")(error.to_string()))?;
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
    /// This number.
    Count(usize),
    /// A share of the prompt's.
    Share(String),
}

/// Rows that decoding keeps, by the request: both choices, or one with the server's other one; none
/// where it has neither.
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
