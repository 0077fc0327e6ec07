//! Prompts that are held for other programs, each from its plan until it is released, by their ids.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tributary_coordinator::conductor::Desk;
use tributary_engine::Answered;

use super::told::{Facts, FirstToken, Told, VERSION};
use crate::body::short;
use crate::error::ApiError;
use crate::guard::Asker;
use crate::output::Metrics;

/// The prompts that are held for other programs, by their ids.
pub struct HandOvers {
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    /// Time after the last use of an entry for which it is held.
    expiry: Duration,
    /// Whether an id is of use to the client alone that got it: clients are told apart by keys.
    is_bound: bool,
    /// Answers that go on elsewhere.
    relays: AtomicUsize,
}

impl HandOvers {
    /// None yet.
    pub fn new(expiry: Duration, is_bound: bool) -> Self {
        Self { entries: Mutex::default(), expiry, is_bound, relays: AtomicUsize::new(0) }
    }

    /// Number of answers that go on elsewhere.
    pub fn relays(&self) -> usize {
        self.relays.load(Ordering::Relaxed)
    }

    /// An answer goes on elsewhere.
    pub fn relay_begins(&self) {
        self.relays.fetch_add(1, Ordering::Relaxed);
    }

    /// It has ended.
    pub fn relay_ends(&self) {
        self.relays.fetch_sub(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry that this client may read.
    pub fn find(&self, id: &str, asker: Asker) -> Result<Arc<Entry>, ApiError> {
        let found =
            self.lock().get(id).cloned().filter(|entry| !self.is_bound || entry.asker.is_none_or(|own| own == asker));
        found.inspect(|entry| entry.is_used()).ok_or_else(|| {
            let message = format!("there is no prefill `{}`: it has expired, was released, or never was", short(id));
            ApiError::invalid(message).with_status(StatusCode::NOT_FOUND)
        })
    }
}

/// Longest time between a failure and its notice here.
const SHORTLY: Duration = Duration::from_secs(1);

/// The state of a prefill.
#[derive(Clone)]
pub enum State {
    /// It waits or is being computed.
    Planned,
    /// Its keys and values are there.
    Done(Option<Arc<Ended>>),
    /// It has failed.
    Failed(ApiError),
}

/// A prefill that has ended.
pub struct Ended {
    /// The first token.
    pub first: Option<FirstToken>,
    /// Its answer.
    pub answered: Answered,
}

/// Where prompts are held, and under which model's name.
#[derive(Clone)]
pub struct Place {
    /// Name of the model.
    pub model: Arc<str>,
    /// The prompts.
    pub hand_overs: Arc<HandOvers>,
    /// The queue of their requests.
    pub desk: Desk,
}

/// A prompt that is held.
pub struct Entry {
    /// The client whose key it is bound to. What a decoder reads is bound to none: it has a key of
    /// its own, and got the id alone.
    pub asker: Option<Asker>,
    /// Number of its request.
    pub request: u64,
    /// Facts of its keys and values.
    pub facts: Facts,
    id: String,
    model: Arc<str>,
    hand_overs: Arc<HandOvers>,
    desk: Desk,
    /// Its state.
    pub state: watch::Sender<State>,
    used: Mutex<Instant>,
    /// Notified when it is released.
    pub released: Notify,
}

/// A sequence that is held. It is released when this is dropped.
pub struct Held {
    /// The queue of its request.
    pub desk: Desk,
    /// Number of its request.
    pub request: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.desk.cancel(self.request);
    }
}

/// An entry that is found by its id until this is dropped.
pub struct Listed(Arc<Entry>);

impl Drop for Listed {
    fn drop(&mut self) {
        self.0.forget();
    }
}

impl Entry {
    /// An entry, which is found by its id from now on.
    pub fn new(
        (at, asker): (&Place, Option<Asker>),
        request: u64,
        (facts, state): (Facts, State),
        id: &str,
    ) -> Arc<Self> {
        let (state, used, released) = (watch::Sender::new(state), Mutex::new(Instant::now()), Notify::new());
        let Place { model, hand_overs, desk } = at.clone();
        let entry = Self { asker, request, facts, id: id.to_owned(), model, hand_overs, desk, state, used, released };
        let entry = Arc::new(entry);
        entry.hand_overs.lock().insert(entry.id.clone(), Arc::clone(&entry));
        entry
    }

    /// A prefill of which all is there already, for a decoder.
    pub fn held_now(at: &Place, request: u64, facts: Facts, id: &str) -> Listed {
        Listed(Self::new((at, None), request, (facts, State::Done(None)), id))
    }

    /// It is found by its id no more.
    pub fn forget(&self) {
        self.hand_overs.lock().remove(&self.id);
        let gone = ApiError::invalid("the prefill was released").with_status(StatusCode::NOT_FOUND);
        self.state.send_replace(State::Failed(gone));
    }

    /// It is used: it expires later.
    pub fn is_used(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Lets go of its keys and values, in any state. An answer that a decoder has begun goes on.
    pub fn release(&self) {
        self.released.notify_one();
        self.desk.cancel(self.request);
    }

    /// Why the prefill has failed, or that it was released. A failure may be known to a reader
    /// shortly before it is known here.
    pub async fn failure(&self) -> Option<ApiError> {
        let mut state = self.state.subscribe();
        let known = state.wait_for(|state| !matches!(state, State::Planned));
        match tokio::time::timeout(SHORTLY, known).await.ok()?.ok().as_deref() {
            Some(State::Failed(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// What its client is told, as JSON.
    ///
    /// # Errors
    /// Returns an error if it cannot be written.
    pub fn told(&self) -> Result<String, ApiError> {
        let state = self.state.borrow().clone();
        let told = Told {
            id: &self.id,
            object: "tributary.prefill",
            version: VERSION,
            status: match state {
                State::Planned => "planned",
                State::Done(_) => "done",
                State::Failed(_) => "failed",
            },
            model: &self.model,
            facts: &self.facts,
            expires_in_s: self.hand_overs.expiry.as_secs(),
            first_token: None,
            metrics: None,
            error: None,
        };
        let told = match &state {
            State::Planned | State::Done(None) => told,
            State::Done(Some(ended)) => {
                let metrics = Some(Metrics::of(&ended.answered));
                Told { first_token: ended.first.clone(), metrics, ..told }
            }
            State::Failed(error) => Told { error: Some(error.body()["error"].clone()), ..told },
        };
        serde_json::to_string(&told).map_err(|error| ApiError::internal(format!("a bug: {error}")))
    }

    /// Time that is left until it expires.
    pub fn left(&self) -> Duration {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.hand_overs.expiry.saturating_sub(used.elapsed())
    }
}

/// 128 random bits.
pub fn new_id() -> Result<String, ApiError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(format!("no random numbers: {error}")))?;
    Ok(format!("kv-{:032x}", u128::from_le_bytes(bytes)))
}
