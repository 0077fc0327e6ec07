//! What handlers share.

use std::sync::Arc;

use tokio::sync::watch;
use tributary_engine::Client;

use crate::input::Terms;
use crate::limits::ClientLimits;
use crate::metrics::Metrics;
use crate::readers::Readers;
use crate::ready::Readiness;
use crate::reasoning::ReasoningParser;

/// The engine, its name for clients, and what is counted.
#[derive(Clone)]
pub struct Shared {
    /// The way to the engine.
    pub client: Client,
    /// The model's name.
    pub model: Arc<str>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What its clients may ask at most.
    pub limits: ClientLimits,
    /// How a model's reasoning is told from its answer.
    pub reasoning: ReasoningParser,
    /// Who may read a body and make tokens of it now.
    pub readers: Readers,
    /// Whether the last self-test was right.
    pub readiness: watch::Receiver<Readiness>,
    /// Whether the service is about to end: no more requests are taken.
    pub draining: watch::Receiver<bool>,
    /// Whether fields of bodies that are not known pass.
    pub ignores_unknown: bool,
    /// Whether a client finds only chunks of its own in the caches.
    pub caches_apart: bool,
    /// Tokens of an answer where a request does not say how many, if the service says so.
    pub default_tokens: Option<usize>,
}

impl Shared {
    /// How bodies are read.
    pub fn terms(&self) -> Terms<'_> {
        let Self { client, model, limits, ignores_unknown, default_tokens, .. } = self;
        Terms {
            model,
            settings: client.settings(),
            limits,
            ignores_unknown: *ignores_unknown,
            default_tokens: *default_tokens,
            max_positions: client.shape().max_positions,
            vocabulary: client.vocabulary(),
        }
    }
}
