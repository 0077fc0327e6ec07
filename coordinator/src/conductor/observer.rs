//! Observers of the ranks' work as it happens, in addition to the clients: for metrics.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tributary_protocol::{Collective, Plan, RankReport, StepReport, Traffic};

use super::tally::Tally;

/// Receives events of the ranks' work on the coordinator's thread: it must neither wait nor compute
/// for long.
pub trait Observer: Send + Sync {
    /// A prefill has ended, of a request or of chunks ahead of use. The first token, if any, has
    /// been delivered.
    fn prefilled(&self, prefilled: &Prefilled<'_>);

    /// A step of decoding has ended; one report a rank, and for each sequence the time since its
    /// token before.
    fn stepped(&self, reports: &[StepReport], gaps: &[Duration]);

    /// Traffic of a rank, for a request that may yet fail.
    fn moved(&self, rank: usize, traffic: &Traffic);

    /// A submitted request ends without an answer.
    fn ended(&self, ended: &Ended);

    /// The group of ranks has failed, with the exit code of the cause.
    fn failed(&self, exit_code: u8);

    /// The failed component of a failed group is known.
    fn broken(&self, breakage: Breakage);

    /// The group has spent this time so. All times of a conductor together are its age.
    fn spent(&self, _: Occupation, _: Duration) {}

    /// A queue has opened: its counts can be read from now on.
    fn opened(&self, _: Tally) {}
}

/// What a group of ranks does, as its conductor sees it: orders, and the conductor's own work for
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occupation {
    /// A prefill, without the steps at its halts, and with an eviction after it.
    Prefill,
    /// Steps of decoding.
    Decode,
    /// Released sequences, and reads of held ones.
    Other,
    /// Nothing: no request can go on.
    Idle,
}

impl Occupation {
    /// All of them.
    pub const ALL: [Occupation; 4] = [Occupation::Prefill, Occupation::Decode, Occupation::Other, Occupation::Idle];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Occupation::Prefill => "prefill",
            Occupation::Decode => "decode",
            Occupation::Other => "other",
            Occupation::Idle => "idle",
        }
    }
}

/// A prefill that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Prefilled<'a> {
    /// One report a rank, in rank order.
    pub reports: &'a [RankReport],
    /// Chunks, or pieces of a prompt, that may have come from the chunk caches and the stores
    /// behind them.
    pub chunks: usize,
    /// The stores behind the chunk caches: the first of the ranks that read each, and its last
    /// reported bytes.
    pub stores: &'a [(usize, u64)],
}

impl<'a> Prefilled<'a> {
    /// The end of this plan, if it is known.
    pub fn new(plan: Option<&Plan>, reports: &'a [RankReport], stores: &'a [(usize, u64)]) -> Self {
        let looks = |plan: &&Plan| plan.keep_chunks;
        Self { reports, chunks: plan.filter(looks).map_or(0, Plan::cacheable_count), stores }
    }

    /// Notifies an observer of it and of its traffic.
    pub fn tell(&self, observer: &dyn Observer) {
        for RankReport { rank, traffic, decode_traffic, .. } in self.reports {
            observer.moved(*rank, traffic);
            observer.moved(*rank, decode_traffic);
        }
        observer.prefilled(self);
    }
}

/// A failure between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// A call did not end.
    Call {
        /// Its kind.
        collective: Collective,
        /// Exit code of the cause.
        exit_code: u8,
    },
    /// A message was damaged in transit.
    Message,
}

/// A request without a whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its number in the queue.
    pub request: u64,
    /// Its method's name.
    pub method: &'static str,
    /// Its stage when its client left or was cut; absent if it has failed.
    pub stage: Option<Stage>,
    /// Time from its acceptance to its first token, if there was one.
    pub ttft: Option<Duration>,
    /// Time from its acceptance to its end.
    pub total: Duration,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens that were generated.
    pub generated_tokens: usize,
}

/// Stage of a request at its early end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It waited for its turn.
    Queue,
    /// It was being prefilled: it ended before a step of decoding.
    Prefill,
    /// It was being decoded.
    Decode,
    /// Its client read too slowly, and was cut.
    Slow,
}

impl Stage {
    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Queue => "queue",
            Stage::Prefill => "prefill",
            Stage::Decode => "decode",
            Stage::Slow => "slow",
        }
    }
}

/// A place for one observer, which may be set after the work begins. Clones are the same place.
#[derive(Clone, Default)]
pub struct Observed(Arc<OnceLock<Arc<dyn Observer>>>, Arc<OnceLock<fn(&str)>>);

impl Observed {
    /// From now on `observer` is notified; only the first one counts.
    pub fn by(&self, observer: Arc<dyn Observer>) {
        // A second one comes too late, and has been promised nothing.
        let _ = self.0.set(observer);
    }

    /// From now on warnings about requests go to this function too: to a log.
    pub fn warned_by(&self, warn: fn(&str)) {
        // The same one may be set again.
        let _ = self.1.set(warn);
    }

    /// Writes a warning to the log.
    pub fn warn(&self, line: &str) {
        if let Some(warn) = self.1.get() {
            warn(line);
        }
    }

    /// Notifies the observer, if there is one.
    pub fn tell(&self, what: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = self.0.get() {
            what(&**observer);
        }
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Observed" } else { "Observed(none)" })
    }
}
