//! A request on its way through the engine, as its client's handler holds it. Whoever lets go of it before its end cancels it: a handler
//! whose client has left is dropped, in whatever phase its request is.

use std::sync::Arc;

use tokio::sync::mpsc;
use tributary_coordinator::RequestSettings;
use tributary_engine::{Answered, NotTaken, RequestFailure, Sink, Update};

use crate::arrival::Arrival;
use crate::body::Fields;
use crate::deadline::TimeUp;
use crate::error::ApiError;
use crate::input::Asked;
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
    time_up: TimeUp,
    is_over: bool,
}

impl Running {
    /// Reads a request, makes tokens of it, and hands it in with the settings that it has.
    ///
    /// # Errors
    /// What cannot be read, or is not taken.
    pub async fn begin<R: Asked>(
        shared: &Shared,
        Arrival { clock, body, time_up }: Arrival,
        wanted: Wanted,
        settings: impl Fn(&R) -> RequestSettings,
    ) -> Result<(Self, R), ApiError> {
        if *shared.draining.borrow() {
            return Err(RequestFailure::Closed.into());
        }
        let desk = shared.client.desk();
        // Before anything is made of its text.
        if desk.is_full() {
            return Err(RequestFailure::Busy { waiting: desk.waiting() }.into());
        }
        let permit = Arc::clone(&shared.readers).acquire_owned().await.expect("nobody closes it");
        let reader = shared.clone();
        // Reading a long body and making tokens of it computes: it goes to a thread that may.
        let read = tokio::task::spawn_blocking(move || {
            // Held even when nobody waits for it any more.
            let _permit = permit;
            let Shared { client, model, limits, .. } = reader;
            let request = R::read(Fields::from_json(&body)?, &model, client.settings())?;
            limits.check_documents(request.document_count())?;
            let prepared = request.prepare(&client)?;
            limits.check_prompt(&prepared)?;
            Ok::<_, ApiError>((request, prepared))
        });
        let (asked, prepared) = read.await.map_err(|error| ApiError::internal(format!("a bug: {error}")))??;
        let settings = settings(&asked);
        let (sender, updates) = mpsc::channel(BUFFERED);
        let (method, sink) = (settings.method.name, Box::new(Channel(sender)));
        // Nothing is waited for between handing it in and holding it: no request is left behind without a holder.
        let (request, method) = match wanted {
            Wanted::Answer => (desk.submit(prepared, settings, clock, sink)?, Some(method)),
            Wanted::Chunks => (desk.submit_chunks(prepared, settings, clock, sink)?, None),
        };
        Ok((Self { shared: shared.clone(), request, method, updates, time_up, is_over: false }, asked))
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
    pub fn failed(&mut self) {
        self.is_over = true;
        self.shared.client.desk().cancel(self.request);
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
        let Shared { client, metrics, .. } = &self.shared;
        client.desk().cancel(self.request);
        let Some(method) = self.method else { return };
        // What comes from here on is not taken, and the engine says so. The whole answer may have come just before.
        self.updates.close();
        while let Ok(update) = self.updates.try_recv() {
            if let Update::Done(done) = update
                && let Ok(answered) = client.answered(*done)
            {
                metrics.unread(&answered);
                return;
            }
        }
        metrics.ended(method, if self.time_up.is_up() { Outcome::Failed } else { Outcome::Cancelled });
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
