//! What handlers share.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tributary_engine::Client;

use crate::limits::ClientLimits;
use crate::metrics::Metrics;
use crate::ready::Readiness;

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
    /// Who may read a body and make tokens of it now.
    pub readers: Arc<Semaphore>,
    /// Whether the last self-test was right.
    pub readiness: watch::Receiver<Readiness>,
    /// Whether the service is about to end: no more requests are taken.
    pub draining: watch::Receiver<bool>,
}
