//! State that handlers share.

use std::sync::Arc;

use tokio::sync::watch;
use tributary_engine::Client;

use crate::decoder::Decoder;
use crate::hand_over::held::{HandOvers, Place};
use crate::input::Terms;
use crate::limits::ClientLimits;
use crate::metrics::Metrics;
use crate::readers::Readers;
use crate::ready::Readiness;
use crate::reasoning::Reasoning;

/// The engine, its name for clients, and the metrics.
#[derive(Clone)]
pub struct Shared {
    /// The way to the engine.
    pub client: Client,
    /// The model's name.
    pub model: Arc<str>,
    /// Metrics of the service.
    pub metrics: Arc<Metrics>,
    /// Prompts that are held for other programs.
    pub hand_overs: Arc<HandOvers>,
    /// The server that decodes, if another one does.
    pub decoder: Option<Arc<Decoder>>,
    /// Limits of clients' requests.
    pub limits: ClientLimits,
    /// Separation of a model's reasoning from its answer.
    pub reasoning: Reasoning,
    /// Permits for tokenizing a body.
    pub readers: Readers,
    /// Whether the last self-test was right.
    pub readiness: watch::Receiver<Readiness>,
    /// Whether the service is about to end: no more requests are taken.
    pub draining: watch::Receiver<bool>,
    /// Whether fields of bodies that are not known pass.
    pub ignores_unknown: bool,
    /// Whether a client finds only its own chunks in the caches.
    pub caches_apart: bool,
    /// Default maximum of tokens in an answer, if the service sets one.
    pub default_tokens: Option<usize>,
}

impl Shared {
    /// Where prompts are held for other programs.
    pub fn place(&self) -> Place {
        let Self { client, model, hand_overs, .. } = self;
        Place { model: Arc::clone(model), hand_overs: Arc::clone(hand_overs), desk: client.desk().clone() }
    }

    /// Terms for reading bodies.
    pub fn terms(&self) -> Terms<'_> {
        let Self { client, model, limits, ignores_unknown, default_tokens, .. } = self;
        Terms {
            model,
            settings: client.settings(),
            limits,
            ignores_unknown: *ignores_unknown,
            default_tokens: *default_tokens,
            max_positions: client.shape().max_positions,
            pictures: client.pictures(),
            vocabulary: client.vocabulary(),
        }
    }
}
