//! A rank's way past control points: it counts them, waits for the word at each, and knows how long
//! it has waited.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tributary_protocol::Word;

use super::gate::word;
use super::hub::{Hub, Patience, Verdict};
use crate::Result;
use crate::link::Signals;

/// Points of one order have numbers from a multiple of this on.
const ORDER: u64 = 1 << 32;

/// A backend's part in control points.
pub(crate) trait Passage: Send + Sync {
    /// The hub that gives the rank its word.
    fn hub(&self) -> &Hub;

    /// Reports this rank's arrival to the rank that gives words, or the word to the waiting ranks
    /// if this rank gives it.
    fn arrive(&self, number: u64);

    /// Whether the word is given in this process.
    fn gives_words(&self) -> bool;

    /// The verdict on a wait that has lasted as long as its deadline.
    fn judge(&self, missing: &[usize], patience: Patience) -> Verdict;

    /// Ends the wait for a word. The other ranks learn of a failure that began here.
    fn passed(&self, _: &Result<Word>) {}
}

/// The control points of one rank. Clones are of the same rank, whose thread alone passes points.
#[derive(Clone)]
pub struct Points {
    passage: Arc<dyn Passage>,
    rank: usize,
    own: Arc<Own>,
}

#[derive(Default)]
struct Own {
    /// The number of the last point, or of the order's beginning.
    number: AtomicU64,
    request: AtomicU64,
    /// What the coordinator wants, in the process of rank 0.
    signals: OnceLock<Signals>,
    /// Points that have not been counted as calls yet, and the time that they took.
    passed: AtomicU64,
    waited_ns: AtomicU64,
}

impl Points {
    pub(crate) fn new(passage: Arc<dyn Passage>, rank: usize) -> Self {
        Self { passage, rank, own: Arc::default() }
    }

    /// In the process of rank 0: requests are cancelled and halt at their next point as is said
    /// here.
    pub fn listen(&self, signals: &Signals) {
        // The same ones may be set again.
        let _ = self.own.signals.set(signals.clone());
        self.passage.hub().listen(signals.clone());
    }

    /// An order begins that works on a request. Every rank calls it for every such order.
    pub fn begin(&self, request: u64) {
        let order = self.own.number.load(Ordering::Relaxed) / ORDER;
        self.own.number.store((order + 1) * ORDER, Ordering::Relaxed);
        self.own.request.store(request, Ordering::Relaxed);
        let hub = self.passage.hub();
        hub.points_of(request);
        if self.own.signals.get().is_none() {
            // Ranks that share the process of rank 0 know what it knows.
            hub.signals().into_iter().for_each(|signals| _ = self.own.signals.set(signals));
        }
    }

    /// Number of points passed since the order began.
    pub fn count(&self) -> u64 {
        self.own.number.load(Ordering::Relaxed) % ORDER
    }

    /// Whether the request is to be cancelled, as far as this process knows: only the process of
    /// rank 0 does. It serves waits without points, whose end rank 0 announces to the others, and
    /// work that the next point discards.
    pub fn is_cancelled(&self) -> bool {
        let request = self.own.request.load(Ordering::Relaxed);
        self.own.signals.get().is_some_and(|signals| signals.is_cancelled(request))
    }

    /// Passes the next point: waits until every rank has arrived, and gives the word, which is the
    /// same on every rank. A single rank does not wait.
    ///
    /// # Errors
    /// Returns an error if the group is dead, or if a rank does not arrive.
    pub fn pass(&self) -> Result<Word> {
        let number = self.own.number.load(Ordering::Relaxed) + 1;
        self.own.number.store(number, Ordering::Relaxed);
        let hub = self.passage.hub();
        if hub.world() == 1 {
            return Ok(word(self.own.signals.get(), self.own.request.load(Ordering::Relaxed)));
        }
        let began = Instant::now();
        self.passage.arrive(number);
        let judge = |missing: &[usize], patience: Patience| self.passage.judge(missing, patience);
        let (phase, deadline) = hub.liveness(self.rank).entered();
        let patience = Patience { phase, deadline };
        let word = hub.word((self.rank, number), self.passage.gives_words(), patience, &judge);
        let waited_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.own.passed.fetch_add(1, Ordering::Relaxed);
        self.own.waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
        self.passage.passed(&word);
        word
    }

    /// Points since the last call of this, and the time that was waited at them.
    pub(crate) fn waited(&self) -> (u64, Duration) {
        let passed = self.own.passed.swap(0, Ordering::Relaxed);
        (passed, Duration::from_nanos(self.own.waited_ns.swap(0, Ordering::Relaxed)))
    }
}

impl fmt::Debug for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Points of rank {}, {} passed", self.rank, self.count())
    }
}
