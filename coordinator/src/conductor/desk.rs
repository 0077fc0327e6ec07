//! The request queue: the clients' side of the conductor.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tributary_comm::Signals;
use tributary_planner::{Planned, RequestSettings};
use tributary_protocol::{DrawnToken, HandOver, RankReport, Refusal, exit};

use super::observer::{Observed, Observer};
use super::tally::{Tally, Waits};
use crate::dispatch::{Answer, Clock};
use crate::intake::Prepared;

/// Maximum number of requests on their way to the conductor, which takes them between two orders.
pub(super) const ON_THE_WAY: usize = 4096;

/// An update that a client receives on its request.
#[derive(Debug)]
pub enum Update {
    /// The prefill of a request that another program decodes is about to begin: its plan.
    Begun(Box<Planned>),
    /// The first token, and the time from the request's acceptance to it.
    FirstToken(DrawnToken, Duration),
    /// A later token.
    Token(DrawnToken),
    /// The answer: the last update.
    Done(Box<Done>),
    /// Chunks wanted ahead of use are in the cache: the last update.
    Kept(Box<Kept>),
    /// The request has failed: the last update.
    Failed(RequestFailure),
}

/// Result of a request.
#[derive(Debug)]
pub struct Done {
    /// The request as token ids.
    pub prepared: Prepared,
    /// Its plan.
    pub planned: Planned,
    /// Answer of the ranks.
    pub answer: Answer,
}

/// Result of a request for chunks ahead of use.
#[derive(Debug)]
pub struct Kept {
    /// The plan, with the rank of each chunk.
    pub planned: Planned,
    /// One report a rank, in rank order.
    pub reports: Vec<RankReport>,
    /// Time that it waited for its turn.
    pub queued: Duration,
    /// Time from its acceptance to the last report.
    pub total: Duration,
}

/// Work that a request asks of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// An answer.
    Answer,
    /// A test answer for the service's own health check; no metric of decoding counts it.
    Test,
    /// Its chunks in the chunk cache, ahead of use.
    Chunks,
    /// Its first token, and its keys and values for another program. They are held until the
    /// request is [cancelled](Desk::cancel).
    HandOver,
}

/// A client's instruction for a request of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// Cancel it; the client receives nothing more of it.
    Cancel(u64),
    /// End it: its answer is long enough.
    End(u64),
}

/// Reason for which a request has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestFailure {
    /// It cannot be answered as it is, or the ranks refused it.
    Refused(Refusal),
    /// Too many requests are waiting.
    Busy {
        /// Number of waiting requests.
        waiting: usize,
    },
    /// The ranks have failed, and with them all their requests.
    Group(Refusal),
    /// No more requests are taken.
    Closed,
}

/// Receiver of one request's updates. A request whose sink does not take an update is cancelled.
pub trait Sink: Send {
    /// Takes an update without waiting.
    ///
    /// # Errors
    /// Returns the reason if it does not take the update.
    fn take(&mut self, update: Update) -> Result<(), NotTaken>;
}

/// Reason for which a sink did not take an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// The reader is gone.
    Gone,
    /// The reader is too slow: unread updates fill its buffer.
    Full,
}

impl Sink for SyncSender<Update> {
    fn take(&mut self, update: Update) -> Result<(), NotTaken> {
        self.try_send(update).map_err(|error| match error {
            TrySendError::Full(_) => NotTaken::Full,
            TrySendError::Disconnected(_) => NotTaken::Gone,
        })
    }
}

/// A request on its way to the conductor.
pub(super) struct Submission {
    pub(super) request: u64,
    pub(super) work: Work,
    pub(super) clock: Clock,
    /// Its client's place among the waiting ones; absent if not counted, and once its turn has
    /// come.
    pub(super) waits: Option<Waits>,
    /// Time from its acceptance to its submission.
    pub(super) prepared_after: Duration,
    pub(super) prepared: Prepared,
    pub(super) settings: RequestSettings,
    pub(super) sink: Box<dyn Sink>,
}

/// A program that waits for rows.
pub trait Reader: Send {
    /// Whether it still waits.
    fn waits(&self) -> bool;

    /// Takes the rows, or the reason why there are none.
    fn take(self: Box<Self>, rows: std::result::Result<Vec<u8>, RequestFailure>);
}

/// Rows of a held sequence that a program waits for. Its reader is told of every end: one that is
/// dropped, even with the inbox in which it still lay, ends as if the conductor had closed.
pub(super) struct Read {
    pub(super) wanted: HandOver,
    /// Absent once it has been told.
    reader: Option<Box<dyn Reader>>,
}

impl Read {
    pub(super) fn new(request: u64, layer: u32, rows: Range<u32>, reader: Box<dyn Reader>) -> Self {
        Self { wanted: HandOver { request, layer, rows }, reader: Some(reader) }
    }

    /// Whether its reader still waits.
    pub(super) fn waits(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.waits())
    }

    /// Ends it, with its rows or without.
    pub(super) fn ends(mut self, rows: std::result::Result<Vec<u8>, RequestFailure>) {
        self.tell(rows);
    }

    /// Ends it without rows.
    pub(super) fn fails(self, why: RequestFailure) {
        self.ends(Err(why));
    }

    fn tell(&mut self, rows: std::result::Result<Vec<u8>, RequestFailure>) {
        if let Some(reader) = self.reader.take() {
            reader.take(rows);
        }
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        self.tell(Err(RequestFailure::Closed));
    }
}

/// What clients hand in.
pub(super) enum Errand {
    Request(Box<Submission>),
    Read(Read),
}

/// State shared by clients and conductor.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) tally: Tally,
    /// Clients' instructions, in the order of their arrival.
    wishes: Mutex<Vec<Wish>>,
    /// Cancellation of the ranks' current request, once there is a conductor.
    signals: OnceLock<Signals>,
    /// Observer of the work.
    pub(super) observed: Observed,
}

impl Counts {
    fn wishes(&self) -> MutexGuard<'_, Vec<Wish>> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels a request in any state, even in the middle of its prefill.
    fn cancel(&self, request: u64) {
        // The instruction first: a conductor that has just sent the request's order finds one or
        // the other.
        self.wishes().push(Wish::Cancel(request));
        if let Some(signals) = self.signals.get() {
            signals.cancel(request);
        }
    }

    /// From now on cancellations take effect in the middle of an order too, through `signals`.
    pub(super) fn cancel_by(&self, signals: &Signals) {
        // There is one conductor, and one link.
        let _ = self.signals.set(signals.clone());
    }

    /// Whether a request is to be cancelled.
    pub(super) fn is_cancelled(&self, request: u64) -> bool {
        self.wishes().contains(&Wish::Cancel(request))
    }

    /// Takes the clients' instructions since the last call, but for those about a request whose
    /// prefill is in progress.
    pub(super) fn take_wishes(&self, prefilling: Option<u64>) -> Vec<Wish> {
        let mut wishes = self.wishes();
        let is_kept = |wish: &Wish| {
            let (Wish::Cancel(request) | Wish::End(request)) = wish;
            Some(*request) == prefilling
        };
        let (kept, taken) = wishes.drain(..).partition(is_kept);
        *wishes = kept;
        taken
    }
}

/// Submits requests. Clones submit to the same conductor, which ends after the last of them is
/// dropped.
#[derive(Clone)]
pub struct Desk {
    errands: SyncSender<Errand>,
    numbers: Arc<AtomicU64>,
    counts: Arc<Counts>,
}

/// The conductor's side of a desk.
pub struct Inbox {
    pub(super) errands: Receiver<Errand>,
    pub(super) counts: Arc<Counts>,
}

impl Inbox {
    /// Takes no more requests; returns those that were on their way. A request submitted meanwhile
    /// is among them or is refused as too late, perhaps both.
    pub(super) fn close(&self) -> Vec<Submission> {
        self.counts.tally.close();
        let late = self.errands.try_iter().filter_map(|errand| match errand {
            Errand::Request(submission) => Some(*submission),
            Errand::Read(_) => None,
        });
        late.inspect(|_| self.counts.tally.taken()).collect()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.close();
    }
}

/// A request queue and the inbox of its requests; `observed` is the place of their observer.
pub fn desk(observed: Observed) -> (Desk, Inbox) {
    let (sender, receiver) = sync_channel(ON_THE_WAY);
    let counts = Arc::new(Counts { observed, ..Counts::default() });
    counts.observed.tell(|observer| observer.opened(counts.tally.clone()));
    let desk = Desk { errands: sender, numbers: Arc::new(AtomicU64::new(1)), counts: Arc::clone(&counts) };
    (desk, Inbox { errands: receiver, counts })
}

impl Desk {
    /// Submits a request and returns its number. Its clock runs since its acceptance. It waits as
    /// the client that was [announced](Self::announce), if one was. Its updates go to `sink`.
    /// Of chunks ahead of use, the query, the method and other settings of answers are not read.
    ///
    /// # Errors
    /// Returns [`RequestFailure::Busy`] if the maximum number of requests is on its way, and
    /// [`RequestFailure::Closed`] if the conductor has ended.
    pub fn submit(
        &self,
        work: Work,
        (prepared, settings): (Prepared, RequestSettings),
        (clock, mut waits): (Clock, Option<Waits>),
        sink: Box<dyn Sink>,
    ) -> Result<u64, RequestFailure> {
        waits.iter_mut().for_each(Waits::has_read);
        let tally = &self.counts.tally;
        if tally.is_left() {
            return Err(RequestFailure::Closed);
        }
        // An order may take long: requests that arrive meanwhile and cannot wait are refused now.
        if tally.is_full() {
            return Err(RequestFailure::Busy { waiting: tally.waiting() });
        }
        let request = self.numbers.fetch_add(1, Ordering::Relaxed);
        let prepared_after = clock.elapsed();
        let submission = Submission { request, work, clock, waits, prepared_after, prepared, settings, sink };
        tally.arrives();
        let failure = match self.errands.try_send(Errand::Request(Box::new(submission))) {
            // The conductor may have closed before taking it.
            Ok(()) if self.is_closed() => return Err(RequestFailure::Closed),
            Ok(()) => return Ok(request),
            Err(TrySendError::Full(_)) => RequestFailure::Busy { waiting: tally.waiting() },
            Err(TrySendError::Disconnected(_)) => RequestFailure::Closed,
        };
        tally.taken();
        Err(failure)
    }

    /// Reads rows of a layer of a held sequence, at most as many as
    /// [fit into a message](tributary_protocol::HandOver::rows_at_once): their keys after RoPE and
    /// values, `[rows, 2, kv_heads, head_dim]`, little-endian. The reader takes them on the
    /// conductor's thread, or a refusal on this one. Does not block.
    pub fn read(&self, request: u64, layer: u32, rows: Range<u32>, reader: Box<dyn Reader>) {
        // One that is not taken is dropped, and so refused.
        let _ = self.errands.try_send(Errand::Read(Read::new(request, layer, rows, reader)));
    }

    /// Cancels a request in any state; one that is over is skipped. It ends between two orders or,
    /// during its prefill, at the ranks' next control point. Does not block.
    pub fn cancel(&self, request: u64) {
        self.counts.cancel(request);
    }

    /// Ends an answer that is long enough for its client. The present part then comes as
    /// [`Update::Done`], perhaps with tokens that were drawn meanwhile. A request that is over is
    /// skipped. Does not block.
    pub fn end(&self, request: u64) {
        self.counts.wishes().push(Wish::End(request));
    }

    /// Closes the queue for all clones. The conductor ends after it has answered its requests.
    pub fn leave(&self) {
        self.counts.tally.leave();
    }

    /// Whether the conductor has ended and no more requests are taken. While requests can be
    /// submitted, that is a failure.
    pub fn is_closed(&self) -> bool {
        self.counts.tally.is_closed()
    }

    /// From now on `observer` is notified of the ranks' work; only the first one counts.
    pub fn observed_by(&self, observer: Arc<dyn Observer>) {
        self.counts.observed.by(observer);
    }

    /// Counts of this queue, for readers that submit nothing and keep no conductor running.
    pub fn tally(&self) -> Tally {
        self.counts.tally.clone()
    }

    /// Announces a request of a client whose text is still to be read: it counts as waiting until
    /// the result is dropped.
    ///
    /// # Errors
    /// Returns [`RequestFailure::Busy`] if the maximum number of requests is waiting, of all
    /// clients or of this one.
    pub fn announce(&self, asker: u64) -> Result<Waits, RequestFailure> {
        let busy = || RequestFailure::Busy { waiting: self.waiting() };
        if self.is_full() {
            return Err(busy());
        }
        self.counts.tally.announce(asker).ok_or_else(busy)
    }

    /// Expected seconds until the turn of a request submitted now.
    pub fn expected_wait_s(&self) -> f64 {
        self.counts.tally.expected_wait_s()
    }

    /// Whether the maximum number of requests is waiting: another one would be refused.
    pub fn is_full(&self) -> bool {
        self.counts.tally.is_full()
    }

    /// Number of requests that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.counts.tally.waiting()
    }

    /// Number of requests in prefill or decoding.
    pub fn running(&self) -> usize {
        self.counts.tally.running()
    }
}

impl RequestFailure {
    /// Exit code of the failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            RequestFailure::Refused(refusal) | RequestFailure::Group(refusal) => refusal.exit_code,
            RequestFailure::Busy { .. } | RequestFailure::Closed => exit::RANK_LOST,
        }
    }
}

impl std::fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestFailure::Refused(refusal) | RequestFailure::Group(refusal) => f.write_str(&refusal.cause),
            RequestFailure::Busy { waiting } => write!(f, "{waiting} requests wait already"),
            RequestFailure::Closed => f.write_str("no more requests are taken"),
        }
    }
}
