//! A request on its way through the engine, as its client's handler holds it. Whoever lets go of it before its end cancels it: a handler
//! whose client has left is dropped, in whatever phase its request is.

use tokio::sync::mpsc;
use tributary_coordinator::{Prepared, RequestSettings};
use tributary_engine::{Answered, Client, Clock, NotTaken, RequestFailure, Sink, Update};

use crate::error::ApiError;
use crate::metrics::Outcome;
use crate::shared::Shared;

/// Updates of a request that its client has not read yet. A client that is slower is cut.
const BUFFERED: usize = 1024;

/// What is wanted of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// An answer.
    Answer,
    /// Chunks ahead of use.
    Chunks,
}

/// A request that is under way. It is cancelled when this goes, unless it is over.
pub struct Running {
    /// What handlers share.
    pub shared: Shared,
    /// Its number.
    pub request: u64,
    /// The method of an answer.
    method: Option<&'static str>,
    updates: mpsc::Receiver<Update>,
    is_over: bool,
}

impl Running {
    /// Makes tokens of a request and hands it in, whose clock runs since it was accepted.
    ///
    /// # Errors
    /// What cannot be read, or is not taken.
    pub async fn begin(
        shared: &Shared,
        (wanted, clock): (Wanted, Clock),
        settings: RequestSettings,
        prepare: impl FnOnce(&Client) -> tributary_engine::Result<Prepared> + Send + 'static,
    ) -> Result<Self, ApiError> {
        if *shared.draining.borrow() {
            return Err(RequestFailure::Closed.into());
        }
        let desk = shared.client.desk();
        // Before anything is made of its text.
        if desk.is_full() {
            return Err(RequestFailure::Busy { waiting: desk.waiting() }.into());
        }
        let client = shared.client.clone();
        // Tokenisation computes: it goes to a thread that may.
        let prepared = tokio::task::spawn_blocking(move || prepare(&client)).await;
        let prepared = prepared.map_err(|error| ApiError::internal(format!("a bug: {error}")))??;
        shared.limits.check_prompt(&prepared)?;
        let (sender, updates) = mpsc::channel(BUFFERED);
        let (method, sink) = (settings.method.name, Box::new(Channel(sender)));
        // Nothing is waited for between handing it in and holding it: no request is left behind without a holder.
        let (request, method) = match wanted {
            Wanted::Answer => (desk.submit(prepared, settings, clock, sink)?, Some(method)),
            Wanted::Chunks => (desk.submit_chunks(prepared, settings, clock, sink)?, None),
        };
        Ok(Self { shared: shared.clone(), request, method, updates, is_over: false })
    }

    /// What comes next. It may be given up while it waits.
    ///
    /// # Errors
    /// The updates ended without an end.
    pub async fn next(&mut self) -> Result<Update, ApiError> {
        match self.updates.recv().await {
            Some(update) => Ok(update),
            None if self.shared.client.desk().is_closed() => Err(RequestFailure::Closed.into()),
            None => Err(ApiError::internal("the request was cut: its client reads too slowly")),
        }
    }

    /// The whole answer is there.
    pub fn answered(&mut self, answered: &Answered) {
        self.is_over = true;
        self.shared.metrics.answered(answered);
    }

    /// The chunks are there.
    pub fn kept(&mut self) {
        self.is_over = true;
    }

    /// There will be no answer. The ranks need not go on with what failed here.
    pub fn failed(&mut self, error: &ApiError) {
        self.is_over = true;
        self.shared.client.desk().cancel(self.request);
        self.shared.metrics.refused(error);
        if let Some(method) = self.method {
            self.shared.metrics.ended(method, Outcome::Failed);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.shared.client.desk().cancel(self.request);
        if let Some(method) = self.method {
            self.shared.metrics.ended(method, Outcome::Cancelled);
        }
    }
}

struct Channel(mpsc::Sender<Update>);

impl Sink for Channel {
    fn take(&mut self, update: Update) -> Result<(), NotTaken> {
        self.0.try_send(update).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotTaken::Full,
            mpsc::error::TrySendError::Closed(_) => NotTaken::Gone,
        })
    }
}
