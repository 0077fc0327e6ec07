//! Answers whose first token is drawn here and whose others another server draws: `--decode-at`.
//! Its tokens become updates of the request, so that texts, stops and streams are as always.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tributary_engine::{Clock, Done, Update};
use tributary_planner::{Planned, RequestSettings};
use tributary_protocol::DrawnToken;

use super::held::{Entry, Held, new_id};
use super::told::Facts;
use crate::decoder::{Continuation, Decoder};
use crate::error::ApiError;
use crate::metrics::Outcome;
use crate::shared::Shared;

/// Updates as a handler reads them.
pub type Updates = mpsc::Receiver<Result<Update, ApiError>>;

/// Where they come from.
type Sender = mpsc::Sender<Result<Update, ApiError>>;

/// An answer that goes on elsewhere.
pub struct Relay {
    /// State that handlers share.
    pub shared: Shared,
    /// The server that decodes.
    pub decoder: Arc<Decoder>,
    /// Number of the request.
    pub request: u64,
    /// Runs since its acceptance.
    pub clock: Clock,
    /// How its tokens are drawn.
    pub settings: Arc<RequestSettings>,
    /// Notified when the answer is long enough.
    pub ending: Arc<Notify>,
}

impl Relay {
    /// Reads the updates of the prefill, and gives those of the whole answer.
    pub fn start(self, prefill: Updates, buffered: usize) -> Updates {
        let (sender, receiver) = mpsc::channel(buffered);
        let counted = Counted::new(&self.shared);
        tokio::spawn(async move {
            let _counted = counted;
            let told = tokio::select! {
                told = self.relay(prefill, &sender) => told,
                // The client has gone: what is held is released as this ends.
                () = sender.closed() => return,
            };
            // One that has gone meanwhile does not matter.
            let _ = sender.try_send(told.map(Update::Done));
        });
        receiver
    }

    /// Passes tokens on, and returns the end of the answer.
    async fn relay(&self, mut prefill: Updates, to: &Sender) -> Result<Box<Done>, ApiError> {
        let _held = Held { desk: self.shared.client.desk().clone(), request: self.request };
        let (planned, first, mut done) = prefilled(&mut prefill, to).await?;
        let ends = self.shared.client.ends(&self.settings.sampling);
        if self.settings.max_tokens <= 1 || ends.contains(&first.token) {
            return Ok(done);
        }
        let order = planned.plan.final_order().unwrap_or_else(|| done.answer.outcome.order.clone());
        let id = new_id()?;
        let facts = tokio::task::block_in_place(|| {
            Facts::new(&self.shared.client, (&planned.plan, &self.settings), &order, &id)
        })?;
        let ids: Vec<u32> = facts.token_ids.iter().copied().chain([first.token]).collect();
        let cache_salt = facts.cache_salt.clone();
        let _entry = Entry::held_now(&self.shared.place(), self.request, facts, &id);
        let wanted = Continuation { ids: &ids, id: &id, cache_salt: cache_salt.as_deref(), settings: &self.settings };
        let told = self.decoded(&wanted, to).await;
        let outcome = &mut done.answer.outcome;
        for DrawnToken { token, margin, .. } in told? {
            outcome.tokens.push(token);
            outcome.margins.push(margin);
        }
        done.answer.total = self.clock.elapsed();
        Ok(done)
    }

    /// Passes on the tokens that the decoder draws, and returns them.
    async fn decoded(&self, wanted: &Continuation<'_>, to: &Sender) -> Result<Vec<DrawnToken>, ApiError> {
        // A client that leaves, or reads too slowly, is no failure of the decoder.
        let mut outcome = Told { shared: &self.shared, outcome: Outcome::Cancelled };
        let (begun, mut drawn) = (self.decoder.decode(wanted).await, Vec::new());
        let mut tokens = begun.inspect_err(|_| outcome.outcome = Outcome::Failed)?;
        loop {
            let next = tokio::select! {
                next = tokens.next() => next,
                () = self.ending.notified() => Ok(None),
            };
            let next = next.map_err(|cause| {
                outcome.outcome = Outcome::Failed;
                self.decoder.failed(&cause)
            })?;
            let Some(token) = next else {
                outcome.outcome = Outcome::Answered;
                return Ok(drawn);
            };
            drawn.push(token.clone());
            pass(to, Update::Token(token))?;
        }
    }
}

/// The outcome of an answer that another server decodes: counted when this is dropped.
struct Told<'a> {
    shared: &'a Shared,
    outcome: Outcome,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.shared.metrics.decoded(self.outcome);
    }
}

/// An answer that goes on elsewhere: a service that ends waits for it.
struct Counted(Shared);

impl Counted {
    fn new(shared: &Shared) -> Self {
        shared.hand_overs.relay_begins();
        Self(shared.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.hand_overs.relay_ends();
    }
}

/// Gives a client an update, unless it is too slow.
fn pass(to: &Sender, update: Update) -> Result<(), ApiError> {
    to.try_send(Ok(update)).map_err(|_| ApiError::internal("the request was cut: its client reads too slowly"))
}

/// Passes the first token on; returns the plan, the first token and the end of the prefill.
async fn prefilled(prefill: &mut Updates, to: &Sender) -> Result<(Planned, DrawnToken, Box<Done>), ApiError> {
    let (mut planned, mut first) = (None, None);
    loop {
        let update = prefill.recv().await.unwrap_or_else(|| Err(ApiError::unavailable("the service ends")))?;
        match (update, &planned, &first) {
            (Update::Begun(plan), None, _) => planned = Some(*plan),
            (Update::FirstToken(drawn, ttft), _, None) => {
                first = Some(drawn.clone());
                pass(to, Update::FirstToken(drawn, ttft))?;
            }
            (Update::Done(done), Some(_), Some(_)) => {
                let missing = || ApiError::internal("a bug: a prefill ended without its plan");
                return Ok((planned.ok_or_else(missing)?, first.ok_or_else(missing)?, done));
            }
            (Update::Failed(failure), ..) => return Err(failure.into()),
            _ => return Err(ApiError::internal("a bug: the next update of a prefill was due")),
        }
    }
}
