//! A prompt that is held for another program, from its plan until it is released.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tributary_coordinator::conductor::Desk;
use tributary_engine::{Answered, Update};

use super::told::{Facts, FirstToken, Told, VERSION};
use crate::error::ApiError;
use crate::guard::Asker;
use crate::output::Metrics;
use crate::running::Running;
use crate::shared::Shared;

/// Longest time between a failure and its notice here.
const SHORTLY: Duration = Duration::from_secs(1);

/// The state of a prefill.
#[derive(Clone)]
enum State {
    /// It waits or is being computed.
    Planned,
    /// Its keys and values are there.
    Done(Option<Arc<Ended>>),
    /// It has failed.
    Failed(ApiError),
}

/// A prefill that has ended.
struct Ended {
    first: Option<FirstToken>,
    answered: Answered,
}

/// A prompt that is held.
pub struct Entry {
    /// The client whose key it is bound to. What a decoder reads is bound to none: it has a key of its
    /// own, and got the id alone.
    pub asker: Option<Asker>,
    /// Number of its request.
    pub request: u64,
    /// Facts of its keys and values.
    pub facts: Facts,
    id: String,
    shared: Shared,
    state: watch::Sender<State>,
    used: Mutex<Instant>,
    released: Notify,
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
    fn new(
        (shared, asker): (&Shared, Option<Asker>),
        request: u64,
        (facts, state): (Facts, State),
        id: &str,
    ) -> Arc<Self> {
        let (state, used, released) = (watch::Sender::new(state), Mutex::new(Instant::now()), Notify::new());
        let (id, shared) = (id.to_owned(), shared.clone());
        let entry = Arc::new(Self { asker, request, facts, id, shared, state, used, released });
        entry.shared.hand_overs.lock().insert(entry.id.clone(), Arc::clone(&entry));
        entry
    }

    /// A prefill of which all is there already, for a decoder.
    pub fn held_now(shared: &Shared, request: u64, facts: Facts, id: &str) -> Listed {
        Listed(Self::new((shared, None), request, (facts, State::Done(None)), id))
    }

    /// It is found by its id no more.
    fn forget(&self) {
        self.shared.hand_overs.lock().remove(&self.id);
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
        self.shared.client.desk().cancel(self.request);
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
            model: &self.shared.model,
            facts: &self.facts,
            expires_in_s: self.shared.hand_overs.expiry.as_secs(),
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
    fn left(&self) -> Duration {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.hand_overs.expiry.saturating_sub(used.elapsed())
    }
}

/// Holds a prefill in a task of its own until it is released. Returns once its plan is known.
///
/// # Errors
/// Returns the failure of a prefill that cannot be planned.
pub async fn begin(mut running: Running, asker: Asker) -> Result<Arc<Entry>, ApiError> {
    let planned = match running.next().await {
        Ok(Update::Begun(planned)) => Ok(planned),
        Ok(Update::Failed(failure)) => Err(failure.into()),
        Ok(_) => Err(ApiError::internal("a bug: a plan was due")),
        Err(error) => Err(error),
    };
    let planned = planned.inspect_err(|_| running.failed())?;
    let (shared, id) = (running.shared.clone(), new_id().inspect_err(|_| running.failed())?);
    // Where chunks are reordered, their places are known when the prefill has ended.
    let (order, ended) = match planned.plan.final_order() {
        Some(order) => (order, None),
        None => {
            let ended = read(&mut running).await.inspect_err(|_| running.failed())?;
            (ended.answered.answer.outcome.order.clone(), Some(Arc::new(ended)))
        }
    };
    // The first time a model's weights may have to be read for their hash.
    let facts =
        tokio::task::block_in_place(|| Facts::new(&shared.client, (&planned.plan, &running.settings), &order, &id));
    let facts = facts.inspect_err(|_| running.failed())?;
    let state = ended.map_or(State::Planned, |ended| State::Done(Some(ended)));
    let entry = Entry::new((&shared, Some(asker)), running.request, (facts, state), &id);
    tokio::spawn(hold(running, Arc::clone(&entry)));
    Ok(entry)
}

/// 128 random bits.
pub fn new_id() -> Result<String, ApiError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(format!("no random numbers: {error}")))?;
    Ok(format!("kv-{:032x}", u128::from_le_bytes(bytes)))
}

/// Reads a prefill to its end.
async fn read(running: &mut Running) -> Result<Ended, ApiError> {
    let mut first = None;
    loop {
        match running.next().await? {
            Update::FirstToken(drawn, _) => first = Some(FirstToken::of(&running.shared.client, &drawn)?),
            Update::Done(done) => {
                let answered = running.shared.client.answered(*done)?;
                running.answered(&answered);
                return Ok(Ended { first, answered });
            }
            Update::Failed(failure) => return Err(failure.into()),
            Update::Begun(_) | Update::Token(_) | Update::Kept(_) => {
                return Err(ApiError::internal("a bug: the end of a prefill was due"));
            }
        }
    }
}

/// Reads a prefill to its end, if it has not been, and holds its keys and values until it is
/// released or expires. A failure is told until it expires.
async fn hold(mut running: Running, entry: Arc<Entry>) {
    let _held = Held { desk: entry.shared.client.desk().clone(), request: entry.request };
    let is_planned = matches!(*entry.state.borrow(), State::Planned);
    let is_over = if is_planned {
        tokio::select! {
            done = read(&mut running) => {
                let state = done.map_or_else(State::Failed, |ended| State::Done(Some(Arc::new(ended))));
                if matches!(state, State::Failed(_)) {
                    running.failed();
                }
                entry.is_used();
                entry.state.send_replace(state);
                false
            }
            () = entry.released.notified() => true,
        }
    } else {
        false
    };
    while !is_over && !entry.left().is_zero() {
        tokio::select! {
            () = tokio::time::sleep(entry.left()) => {}
            () = entry.released.notified() => break,
        }
    }
    entry.forget();
}
