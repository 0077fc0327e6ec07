//! A prefill as its client is told of it.

use serde::Serialize;
use tributary_engine::Client;
use tributary_planner::RequestSettings;
use tributary_protocol::{DrawnToken, Plan};

use crate::error::ApiError;
use crate::output::Metrics;

/// Version of the interface: of this object, and of the bytes of a layer.
pub const VERSION: u32 = 1;

/// A prompt whose keys and values another program may read.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[cfg_attr(test, schema(as = Prefill))]
pub struct Told<'a> {
    /// Its id.
    pub id: &'a str,
    /// `tributary.prefill`.
    pub object: &'static str,
    /// Version of this object and of the bytes of a layer.
    pub version: u32,
    /// `planned`, `done` or `failed`.
    pub status: &'static str,
    /// Name of the model.
    pub model: &'a str,
    /// Facts of its keys and values.
    #[serde(flatten)]
    pub facts: &'a Facts,
    /// Seconds without use after which it is released.
    pub expires_in_s: u64,
    /// The first token of the answer, once it is drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token: Option<FirstToken>,
    /// Cost of the prefill, once it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics<'a>>,
    /// Why it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    pub error: Option<serde_json::Value>,
}

/// Facts of a prompt's keys and values, known once it is planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Facts {
    /// Hash of the model's weights and config, in hexadecimal digits.
    pub fingerprint: String,
    /// The method, with the options that it was given.
    pub method: String,
    /// Whether the keys and values are those of a full prefill of `token_ids`, up to rounding.
    pub exact: bool,
    /// Ids of the prompt's tokens in the order of their positions: row i stands at position i.
    pub token_ids: Vec<u32>,
    /// Their number.
    pub tokens: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of keys and values in a layer.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Type of the numbers, little-endian: `f32`, `bf16` or `f16`.
    pub dtype: String,
    /// Salt under which a prefix cache may keep what is decoded with them; absent where they are
    /// exact. Without it approximate keys and values would serve requests that want exact ones.
    pub cache_salt: Option<String>,
}

/// The first token of an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct FirstToken {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// Its log-probability.
    pub logprob: Option<f32>,
}

impl Facts {
    /// Those of a plan whose chunks stand in `order`.
    ///
    /// # Errors
    /// Returns an error if a file of the model cannot be read.
    pub fn new(
        client: &Client,
        (plan, settings): (&Plan, &RequestSettings),
        order: &[u32],
        id: &str,
    ) -> Result<Self, ApiError> {
        let (shape, method) = (client.shape(), settings.spec().to_string());
        let fingerprint = blake3::Hash::from(client.model_hash()?).to_hex().to_string();
        let exact = plan.is_exact_as_placed() && !shape.kv_in_eight_bits;
        let named = || blake3::hash(format!("{VERSION} {id} {method} {fingerprint}").as_bytes());
        Ok(Self {
            exact,
            token_ids: plan.placed_ids(order),
            tokens: plan.total_rows(),
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            dtype: client.dtype().to_owned(),
            cache_salt: (!exact).then(|| format!("tributary-{}", named().to_hex())),
            fingerprint,
            method,
        })
    }
}

impl FirstToken {
    /// The first token of an answer.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn of(client: &Client, drawn: &DrawnToken) -> Result<Self, ApiError> {
        let text = client.texts(&[drawn.token])?.concat();
        Ok(Self { id: drawn.token, text, logprob: drawn.logprobs.as_ref().map(|logprobs| logprobs.drawn) })
    }
}
