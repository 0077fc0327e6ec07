//! A request on its way through the engine, as its client's handler holds it. Dropping it before
//! its end cancels the request. A handler whose client has left is dropped, in any phase of its
//! request.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tributary_coordinator::Prepared;
use tributary_engine::{Answered, NotTaken, RequestFailure, Sink, Update, Work};
use tributary_planner::RequestSettings;

use crate::arrival::Arrival;
use crate::body::Fields;
use crate::deadline::TimeUp;
use crate::error::ApiError;
use crate::guard::Asker;
use crate::hand_over::relay::{Relay, Updates};
use crate::input::Asked;
use crate::input::pictures::{peak_bytes, pixel_bytes};
use crate::metrics::Outcome;
use crate::shared::Shared;
use crate::upload::Held;

/// Updates of a request that its client has not read yet. A client that is slower is cut.
const BUFFERED: usize = 1024;

/// Number of a prompt's last tokens that its answer is decoded after.
const PROMPT_END: usize = 32;

/// A prompt of a request.
#[derive(Debug)]
pub struct AskedPrompt {
    /// Its place among the request's prompts.
    pub index: usize,
    /// Number of its tokens: prefix, context and query.
    pub tokens: usize,
    /// Number of those that are rows of pictures.
    pub picture_tokens: usize,
    /// The tokens of its query, where log-probabilities of them are wanted or it is repeated.
    pub query: Vec<u32>,
    /// Its last tokens: an answer's text is read after them.
    pub end: Vec<u32>,
}

/// An answer that can be handed in.
struct Ready {
    prepared: Prepared,
    settings: RequestSettings,
    prompt: Arc<AskedPrompt>,
}

/// Makes tokens of the prompts of a request.
fn prepare<R: Asked>(shared: &Shared, asker: Asker, asked: &R) -> Result<Vec<Ready>, ApiError> {
    let Shared { client, limits, .. } = shared;
    let terms = shared.terms();
    let mut ready = Vec::new();
    for (index, mut prepared) in asked.prepare(client)?.into_iter().enumerate() {
        limits.check_prompt(&prepared)?;
        match asked.empty_documents() {
            0 => {}
            1 => prepared.notes.push("a document without a text was left out".to_owned()),
            several => prepared.notes.push(format!("{several} documents without a text were left out")),
        }
        let (tokens, picture_tokens) = (prepared.token_count(), prepared.picture_rows());
        let query = prepared.query.clone();
        let end = query[query.len().saturating_sub(PROMPT_END)..].to_vec();
        let prompt = Arc::new(AskedPrompt { index, tokens, picture_tokens, query, end });
        let rows = client.prompt_rows(&prepared, client.settings());
        for copy in 0..asked.copies() {
            let mut settings = asked.settings(&prepared, (rows, copy), &terms)?;
            settings.cache_scope = shared.caches_apart.then_some(asker.0);
            ready.push(Ready { prepared: prepared.clone(), settings, prompt: Arc::clone(&prompt) });
        }
    }
    Ok(ready)
}

/// Runs work that computes on a thread that may.
async fn computed<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("a bug: {error}")))?
}

/// Memory that the pixels of a request's pictures have, until it is dropped.
type Pixels = Option<Arc<OwnedSemaphorePermit>>;

/// Reads a body, and makes tokens of its prompts. The body's `memory` is held as long; that of
/// pixels is part of the result.
async fn read<R: Asked>(
    shared: &Shared,
    (body, memory): (Bytes, Option<Held>),
    asker: Asker,
) -> Result<(R, Vec<Ready>, Pixels), ApiError> {
    // Held even after the handler is gone: by the closures, which run to their ends.
    let held = (shared.readers.of(body.len()).await, memory);
    let reader = shared.clone();
    let (asked, held) = computed(move || Ok((R::read(Fields::from_json(&body)?, &reader.terms())?, held))).await?;
    let bytes = shared.client.pictures().map_or(0, |rules| pixel_bytes(asked.documents(), rules));
    let pixels = shared.readers.of_pixels(bytes).await.map(Arc::new);
    let decoding = shared.readers.of_pictures(peak_bytes(asked.documents())).await;
    let reader = shared.clone();
    computed(move || {
        let _held = (held, decoding);
        let ready = prepare(&reader, asker, &asked)?;
        Ok((asked, ready, pixels))
    })
    .await
}

/// A request in progress. Dropping it cancels the request, unless it has ended.
pub struct Running {
    /// State that handlers share.
    pub shared: Shared,
    /// Its number.
    pub request: u64,
    /// Facts of its prompt that its client may get before the ranks have seen it.
    pub prompt: Arc<AskedPrompt>,
    /// How it is prefilled, and its tokens are drawn.
    pub settings: Arc<RequestSettings>,
    /// The method of an answer.
    method: Option<&'static str>,
    updates: Updates,
    /// Notified when an answer that another server decodes is long enough.
    ending: Option<Arc<Notify>>,
    time_up: TimeUp,
    is_over: bool,
    _pixels: Pixels,
}

impl Running {
    /// Reads a request, makes tokens of its prompts, and hands in as many answers as it wants: all
    /// copies of the first prompt's, then those of the next.
    ///
    /// # Errors
    /// Returns an error if the request cannot be read or is not accepted.
    pub async fn begin<R: Asked>(
        shared: &Shared,
        Arrival { clock, body, memory, asker, time_up }: Arrival,
        work: Work,
    ) -> Result<(Vec<Self>, R), ApiError> {
        if *shared.draining.borrow() {
            return Err(RequestFailure::Closed.into());
        }
        let desk = shared.client.desk();
        let busy = |failure: RequestFailure| ApiError::from(failure).again_in(desk.expected_wait_s());
        // Before anything is made of its text; it counts as one that waits from here on.
        let mut waits = Some(desk.announce(asker.0).map_err(busy)?);
        let (asked, prompts, pixels) = read::<R>(shared, (body, memory), asker).await?;
        let mut all = Vec::new();
        for Ready { prepared, settings, prompt } in prompts {
            let (sender, updates) = mpsc::channel(BUFFERED);
            let (method, sink) = (settings.method.name, Box::new(Channel(sender)));
            let waits = waits.take().map_or_else(|| desk.announce(asker.0), Ok).map_err(busy)?;
            let decoder = shared.decoder.clone().filter(|_| work == Work::Answer);
            let work = if decoder.is_some() { Work::HandOver } else { work };
            let kept = Arc::new(settings.clone());
            let drawn_by = decoder.map(|decoder| (decoder, Arc::clone(&kept)));
            // There is no await between handing it in and holding it: no request remains without a
            // holder.
            let request = desk.submit(work, (prepared, settings), (clock, Some(waits)), sink).map_err(busy)?;
            let method = (work != Work::Chunks).then_some(method);
            let (shared, time_up) = (shared.clone(), time_up.clone());
            let (updates, ending) = match drawn_by {
                None => (updates, None),
                Some((decoder, settings)) => {
                    let (ending, shared) = (Arc::new(Notify::new()), shared.clone());
                    let told = Arc::clone(&ending);
                    let relay = Relay { shared, decoder, request, clock, settings, ending: told };
                    (relay.start(updates, BUFFERED), Some(ending))
                }
            };
            let (settings, is_over, _pixels) = (kept, false, pixels.clone());
            all.push(Self { shared, request, prompt, settings, method, updates, ending, time_up, is_over, _pixels });
        }
        Ok((all, asked))
    }

    /// Waits for the next update. It is cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the updates stop without a final one.
    pub async fn next(&mut self) -> Result<Update, ApiError> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same for a caller that waits for several.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Update, ApiError>> {
        self.updates.poll_recv(cx).map(|update| match update {
            Some(update) => update,
            None if self.shared.client.desk().is_closed() => Err(RequestFailure::Closed.into()),
            None => Err(ApiError::internal("the request was cut: its client reads too slowly")),
        })
    }

    /// The answer is long enough for its client.
    pub fn end(&self) {
        match &self.ending {
            // It is the other server that draws.
            Some(ending) => ending.notify_one(),
            // The ranks drop it by their next order; its text so far then comes as its end.
            None => self.shared.client.desk().end(self.request),
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

    /// There will be no answer. The ranks need not continue a request that failed here.
    pub fn failed(&mut self) {
        self.is_over = true;
        self.shared.client.desk().cancel(self.request);
        if let Some(method) = self.method {
            self.shared.metrics.ended(method, Outcome::Failed);
        }
    }

    /// Counts a request whose client has left: as unread if the whole answer is there.
    fn count_unread(&mut self) {
        let Shared { client, metrics, .. } = &self.shared;
        let Some(method) = self.method else { return };
        while let Ok(update) = self.updates.try_recv() {
            if let Ok(Update::Done(done)) = update
                && let Ok(answered) = client.answered(*done)
            {
                metrics.unread(&answered);
                return;
            }
        }
        metrics.ended(method, if self.time_up.is_up() { Outcome::Failed } else { Outcome::Cancelled });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // Later updates are not taken, and the engine learns so. The whole answer may have come
        // just before.
        self.updates.close();
        self.count_unread();
        // Only then: a request that neither waits nor runs any more has been counted.
        self.shared.client.desk().cancel(self.request);
    }
}

struct Channel(mpsc::Sender<Result<Update, ApiError>>);

impl Sink for Channel {
    fn take(&mut self, update: Update) -> Result<(), NotTaken> {
        self.0.try_send(Ok(update)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotTaken::Full,
            mpsc::error::TrySendError::Closed(_) => NotTaken::Gone,
        })
    }
}
