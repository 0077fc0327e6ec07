//! Where requests are handed in: the side of the conductor that clients hold.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tributary_comm::Cancels;
use tributary_planner::{Planned, RequestSettings};
use tributary_protocol::{DrawnToken, RankReport, Refusal, exit};

use super::observer::{Observed, Observer};
use super::tally::{Tally, Waits};
use crate::dispatch::{Answer, Clock};
use crate::intake::Prepared;

/// Requests that may be on their way to the conductor, which takes them between two orders.
const ON_THE_WAY: usize = 4096;

/// What a client hears of its request.
#[derive(Debug)]
pub enum Update {
    /// The first token, and the time from the request's acceptance to it.
    FirstToken(DrawnToken, Duration),
    /// Another token.
    Token(DrawnToken),
    /// The answer. Nothing comes behind it.
    Done(Box<Done>),
    /// Chunks that were wanted ahead of use are there. Nothing comes behind it.
    Kept(Box<Kept>),
    /// The request has failed. Nothing comes behind it.
    Failed(RequestFailure),
}

/// What a request came to.
#[derive(Debug)]
pub struct Done {
    /// The request as token ids.
    pub prepared: Prepared,
    /// Its plan.
    pub planned: Planned,
    /// What came back.
    pub answer: Answer,
}

/// What a request for chunks ahead of use came to.
#[derive(Debug)]
pub struct Kept {
    /// The plan: which rank keeps which.
    pub planned: Planned,
    /// One report a rank, in rank order.
    pub reports: Vec<RankReport>,
    /// Time that it waited for its turn.
    pub queued: Duration,
    /// Time from its acceptance to the last report.
    pub total: Duration,
}

/// What a request wants of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// An answer.
    Answer,
    /// An answer for the service itself, which looks whether all is well: no metric of decoding counts it.
    Test,
    /// Its chunks in the chunk cache, ahead of use.
    Chunks,
}

/// What a client wants to happen to a request of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// It is let go of, and nothing more is heard of it.
    Cancel(u64),
    /// Its answer is long enough.
    End(u64),
}

/// Why a request has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestFailure {
    /// It cannot be answered as it is, or the ranks refused it.
    Refused(Refusal),
    /// Too many requests wait.
    Busy {
        /// How many.
        waiting: usize,
    },
    /// The ranks have failed, and with them everything that they were at.
    Group(Refusal),
    /// No more requests are taken.
    Closed,
}

/// Where the updates of one request go. A request whose sink does not take one is cancelled.
pub trait Sink: Send {
    /// Takes an update without waiting.
    ///
    /// # Errors
    /// The reason why it did not.
    fn take(&mut self, update: Update) -> Result<(), NotTaken>;
}

/// Why a sink did not take an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// Nobody reads any more.
    Gone,
    /// The reader is too slow: the updates that it has not read fill its buffer.
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
    /// Its client's place among those that wait; none where nobody counts, and once its turn has come.
    pub(super) waits: Option<Waits>,
    /// Time from its acceptance to being handed in.
    pub(super) prepared_after: Duration,
    pub(super) prepared: Prepared,
    pub(super) settings: RequestSettings,
    pub(super) sink: Box<dyn Sink>,
}

/// What clients and conductor share.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) tally: Tally,
    /// What clients want to happen to their requests, in the order in which they said so.
    wishes: Mutex<Vec<Wish>>,
    /// The way to cancel what the ranks are at, once there is a conductor.
    cancels: OnceLock<Cancels>,
    /// Who watches.
    pub(super) observed: Observed,
}

impl Counts {
    fn wishes(&self) -> MutexGuard<'_, Vec<Wish>> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is let go of, wherever it is: in the middle of its prefill too.
    fn cancel(&self, request: u64) {
        // The wish first: a conductor that has just sent the request's order finds one or the other.
        self.wishes().push(Wish::Cancel(request));
        if let Some(cancels) = self.cancels.get() {
            cancels.cancel(request);
        }
    }

    /// Wishes are carried out in the middle of an order too, by way of `cancels`.
    pub(super) fn cancel_by(&self, cancels: &Cancels) {
        // There is one conductor, and one link.
        let _ = self.cancels.set(cancels.clone());
    }

    /// Whether a request is to be let go of.
    pub(super) fn is_cancelled(&self, request: u64) -> bool {
        self.wishes().contains(&Wish::Cancel(request))
    }

    /// Takes what clients have wished since the last call.
    pub(super) fn take_wishes(&self) -> Vec<Wish> {
        std::mem::take(&mut *self.wishes())
    }
}

/// Hands requests in. Clones hand in to the same conductor, which ends when the last of them is gone.
#[derive(Clone)]
pub struct Desk {
    submissions: SyncSender<Box<Submission>>,
    numbers: Arc<AtomicU64>,
    counts: Arc<Counts>,
}

/// The conductor's side of a desk.
pub struct Inbox {
    pub(super) submissions: Receiver<Box<Submission>>,
    pub(super) counts: Arc<Counts>,
}

impl Inbox {
    /// Takes no more requests; gives those that were on their way. One that is handed in meanwhile is among them or learns that it
    /// came too late, perhaps both.
    pub(super) fn close(&self) -> Vec<Submission> {
        self.counts.tally.close();
        let late = self.submissions.try_iter().inspect(|_| self.counts.tally.taken());
        late.map(|submission| *submission).collect()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.close();
    }
}

/// A desk and where its requests arrive; whoever watches is told of what becomes of them.
pub fn desk(observed: Observed) -> (Desk, Inbox) {
    let (sender, receiver) = sync_channel(ON_THE_WAY);
    let counts = Arc::new(Counts { observed, ..Counts::default() });
    counts.observed.tell(|observer| observer.opened(counts.tally.clone()));
    let desk = Desk { submissions: sender, numbers: Arc::new(AtomicU64::new(1)), counts: Arc::clone(&counts) };
    (desk, Inbox { submissions: receiver, counts })
}

impl Desk {
    /// Hands a request in, whose clock runs since it was accepted, and which waits as the client that was [announced](Self::announce), if
    /// one was; its number. Its updates go to `sink`. Of chunks ahead of use, the query, the method and what else the settings say of
    /// answers are not read.
    ///
    /// # Errors
    /// [`RequestFailure::Busy`] if as many are on their way as may be, [`RequestFailure::Closed`] if the conductor has ended.
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
        // An order may take long: whoever comes meanwhile and cannot wait hears so now.
        if tally.is_full() {
            return Err(RequestFailure::Busy { waiting: tally.waiting() });
        }
        let request = self.numbers.fetch_add(1, Ordering::Relaxed);
        let prepared_after = clock.elapsed();
        let submission = Submission { request, work, clock, waits, prepared_after, prepared, settings, sink };
        tally.arrives();
        let failure = match self.submissions.try_send(Box::new(submission)) {
            // Nobody may have looked since it was put there.
            Ok(()) if self.is_closed() => return Err(RequestFailure::Closed),
            Ok(()) => return Ok(request),
            Err(TrySendError::Full(_)) => RequestFailure::Busy { waiting: tally.waiting() },
            Err(TrySendError::Disconnected(_)) => RequestFailure::Closed,
        };
        tally.taken();
        Err(failure)
    }

    /// Cancels a request, wherever it is; one that is over is passed over. It is let go of between two orders, or, while it is
    /// prefilled, at the ranks' next control point. This waits for nobody.
    pub fn cancel(&self, request: u64) {
        self.counts.cancel(request);
    }

    /// Ends an answer that is long enough for its client: what there is of it then comes as [`Update::Done`], perhaps with tokens
    /// that were drawn meanwhile. A request that is over is passed over. This waits for nobody.
    pub fn end(&self, request: u64) {
        self.counts.wishes().push(Wish::End(request));
    }

    /// From now on nobody hands in any more, whoever may still hold a desk; the conductor ends when what it has is answered.
    pub fn leave(&self) {
        self.counts.tally.leave();
    }

    /// Whether the conductor has ended and no more requests are taken. While anybody can hand in requests that is a failure.
    pub fn is_closed(&self) -> bool {
        self.counts.tally.is_closed()
    }

    /// From now on `observer` is told of what the ranks do; only the first one counts.
    pub fn observed_by(&self, observer: Arc<dyn Observer>) {
        self.counts.observed.by(observer);
    }

    /// What can be counted here, for somebody who hands nothing in and keeps no conductor at work.
    pub fn tally(&self) -> Tally {
        self.counts.tally.clone()
    }

    /// Announces a request of a client whose text is to be read: it counts as one that waits until the result is dropped.
    ///
    /// # Errors
    /// [`RequestFailure::Busy`] if as many wait as may, of all clients or of this one.
    pub fn announce(&self, asker: u64) -> Result<Waits, RequestFailure> {
        let busy = || RequestFailure::Busy { waiting: self.waiting() };
        if self.is_full() {
            return Err(busy());
        }
        self.counts.tally.announce(asker).ok_or_else(busy)
    }

    /// Seconds until a request that comes now would have its turn.
    pub fn expected_wait_s(&self) -> f64 {
        self.counts.tally.expected_wait_s()
    }

    /// Whether as many requests wait as may: one more would be turned away.
    pub fn is_full(&self) -> bool {
        self.counts.tally.is_full()
    }

    /// Requests that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.counts.tally.waiting()
    }

    /// Requests that the ranks are at: being prefilled or decoded.
    pub fn running(&self) -> usize {
        self.counts.tally.running()
    }
}

impl RequestFailure {
    /// The exit code that stands for it.
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
