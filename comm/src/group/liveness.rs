//! A rank's record of its activity and of its last progress: the facts on which the rule of
//! liveness rests.
//!
//! A rank may wait for others for any length of time. A rank that computes must make progress: a
//! step beyond its limit is a stall. The limit is the timeout of a collective, or ten times the
//! longest comparable step, whichever is longer. Comparable steps are of the same kind in the same
//! phase of the same request. No rate of a machine is assumed.
//!
//! Kernels report every finished tile of their work, from the thread that computed it. Each tile is
//! progress, so that a step may take as long as it takes: stuck is only a rank that does nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tributary_protocol::Phase;

use crate::{Collective, Error};

/// Factor by which a step may exceed the rank's longest comparable step so far.
const TIMES_LONGER: u32 = 10;

/// The record of a rank's progress. The rank writes each of its steps here; other threads read it.
/// Clones share it.
#[derive(Debug, Clone)]
pub struct Liveness {
    doing: Arc<Mutex<Doing>>,
    tiles: Arc<Tiles>,
}

/// When the last tile was done. Written without a lock, because tiles are many.
#[derive(Debug)]
struct Tiles {
    since: Instant,
    last_ns: AtomicU64,
}

impl Tiles {
    fn last(&self) -> Instant {
        self.since + Duration::from_nanos(self.last_ns.load(Ordering::Relaxed))
    }
}

/// The kind of work between two signs of progress: steps are compared with others of their kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKind {
    /// Everything outside the layers of the model.
    Other,
    /// Norms, projections and the MLP of a layer.
    Linear,
    /// The attention of a layer, without the waits for other ranks.
    Attention,
}

#[derive(Debug)]
struct Doing {
    request: u64,
    phase: Phase,
    layer: Option<usize>,
    part: StepKind,
    /// When the step that runs began, or the wait in it ended.
    began: Instant,
    /// Time of the rank's last progress other than tiles: a step, or the end of a call.
    advanced: Instant,
    /// The shortest limit of a step, and the longest wait of all ranks for each other.
    timeout: Duration,
    /// The longest step of this request by phase and kind.
    longest: BTreeMap<(Phase, StepKind), Duration>,
    /// The call that the rank's thread waits for.
    waits: Option<Wait>,
    /// Number of calls that the rank's device has come to, where devices carry the calls' tensors.
    reached: u64,
    /// The call in which the device waits.
    stands: Option<Wait>,
}

#[derive(Debug, Clone)]
struct Wait {
    operation: Collective,
    call: u64,
    ranks: Vec<usize>,
    since: Instant,
}

/// Activity of a rank at one moment, as other ranks learn it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Activity {
    /// Number of the request; 0 before the first.
    pub request: u64,
    /// Its phase.
    pub phase: Phase,
    /// The layer of the model; none outside the layers.
    pub layer: Option<usize>,
    /// Whether it computes or waits.
    pub state: RankState,
    /// Number of calls that its device has reached, where devices carry the calls' tensors.
    pub reached: u64,
}

/// Whether a rank computes or waits, and for how long.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum RankState {
    /// It computes.
    Computes {
        /// Milliseconds since it last got on.
        for_ms: u64,
    },
    /// It waits for other ranks in a collective call.
    Waits {
        /// The kind of the call.
        operation: Collective,
        /// The call's place in the sequence of calls.
        call: u64,
        /// The ranks that have not made the call, as far as they are known.
        ranks: Vec<usize>,
        /// Milliseconds since the wait began.
        for_ms: u64,
        /// Whether its device waits, instead of its thread.
        on_device: bool,
    },
}

/// A rank that computes without progress for longer than it may.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// The activity in which it is stuck.
    pub activity: Activity,
    /// The longest time that it may take.
    pub limit: Duration,
}

impl Default for Liveness {
    /// The record of a rank that has just started.
    fn default() -> Self {
        let now = Instant::now();
        let doing = Doing {
            request: 0,
            phase: Phase::Start,
            layer: None,
            part: StepKind::Other,
            began: now,
            advanced: now,
            timeout: Duration::MAX,
            longest: BTreeMap::new(),
            waits: None,
            reached: 0,
            stands: None,
        };
        let tiles = Tiles { since: now, last_ns: AtomicU64::new(0) };
        Self { doing: Arc::new(Mutex::new(doing)), tiles: Arc::new(tiles) }
    }
}

impl Liveness {
    /// A request begins: steps of earlier ones are not compared with its steps.
    pub fn begin(&self, request: u64) {
        let mut doing = self.lock();
        doing.advance();
        doing.request = request;
        doing.longest.clear();
    }

    /// A step of this kind begins, in this layer if it belongs to one; the step before it has
    /// ended.
    pub fn step(&self, part: StepKind, layer: Option<usize>) {
        let mut doing = self.lock();
        doing.advance();
        (doing.part, doing.layer) = (part, layer);
    }

    /// A step of another kind begins in the same layer.
    pub fn turn_to(&self, part: StepKind) {
        let mut doing = self.lock();
        doing.advance();
        doing.part = part;
    }

    /// Notes a finished tile of a kernel's work, from any thread of the rank.
    pub fn tile(&self) {
        let ns = u64::try_from(self.tiles.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.tiles.last_ns.store(ns, Ordering::Relaxed);
    }

    /// A phase begins, or the same one again with another timeout.
    pub(crate) fn enter(&self, phase: Phase, timeout: Duration) {
        let mut doing = self.lock();
        doing.advance();
        doing.timeout = timeout;
        if doing.phase != phase {
            (doing.phase, doing.part, doing.layer) = (phase, StepKind::Other, None);
        }
    }

    /// The rank's thread waits for ranks in a call since some moment.
    pub(crate) fn wait_for(&self, operation: Collective, call: u64, ranks: &[usize], since: Instant) {
        let mut doing = self.lock();
        if doing.waits.is_none() {
            doing.advance();
        }
        doing.waits = Some(Wait { operation, call, ranks: ranks.to_vec(), since });
    }

    /// The wait of the rank's thread is over.
    pub(crate) fn go_on(&self) {
        let mut doing = self.lock();
        // The time of a wait is not that of a step.
        doing.waits = None;
        doing.goes_on();
    }

    /// Notes that the device has reached `calls` calls, and waits in the last of them if its kind
    /// is given.
    pub(crate) fn reach(&self, calls: u64, stands: Option<Collective>) {
        let mut doing = self.lock();
        // Two threads of a rank say this: older news does not count.
        if calls < doing.reached {
            return;
        }
        let known = doing.stands.as_ref().is_some_and(|wait| wait.call + 1 == calls);
        if calls > doing.reached || known != stands.is_some() {
            doing.goes_on();
        }
        doing.reached = calls;
        if !(known && stands.is_some()) {
            let wait = |operation| Wait { operation, call: calls - 1, ranks: Vec::new(), since: Instant::now() };
            doing.stands = stands.map(wait);
        }
    }

    /// The phase that the rank is in.
    pub(crate) fn phase(&self) -> Phase {
        self.lock().phase
    }

    /// The phase and the timeout that it was entered with.
    pub(crate) fn entered(&self) -> (Phase, Duration) {
        let doing = self.lock();
        (doing.phase, doing.timeout)
    }

    /// Time that the rank has computed since its last progress; zero while it waits for others.
    pub(crate) fn quiet(&self) -> Duration {
        let doing = self.lock();
        let waits = doing.waits.is_some() || doing.stands.is_some();
        if waits { Duration::ZERO } else { doing.quiet(&self.tiles) }
    }

    /// The rank's activity now.
    pub fn activity(&self) -> Activity {
        self.lock().activity(&self.tiles)
    }

    /// The rank's stall, if it is in one. Before the first request the limit of the start counts,
    /// not this.
    pub(crate) fn stall(&self) -> Option<Stall> {
        let doing = self.lock();
        let waits = doing.waits.is_some() || doing.stands.is_some();
        if waits || doing.phase == Phase::Start {
            return None;
        }
        let longest = doing.longest.get(&(doing.phase, doing.part)).copied().unwrap_or_default();
        let limit = doing.timeout.max(longest.saturating_mul(TIMES_LONGER));
        (doing.quiet(&self.tiles) > limit).then(|| Stall { activity: doing.activity(&self.tiles), limit })
    }

    fn lock(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Doing {
    /// The step that ran has ended now.
    fn advance(&mut self) {
        let took = self.began.elapsed();
        let longest = self.longest.entry((self.phase, self.part)).or_default();
        *longest = took.max(*longest);
        self.goes_on();
    }

    /// A step begins now.
    fn goes_on(&mut self) {
        self.began = Instant::now();
        self.advanced = self.began;
    }

    /// Time since the last progress.
    fn quiet(&self, tiles: &Tiles) -> Duration {
        self.advanced.max(tiles.last()).elapsed()
    }

    fn activity(&self, tiles: &Tiles) -> Activity {
        let waits = |wait: &Wait, on_device: bool| RankState::Waits {
            operation: wait.operation,
            call: wait.call,
            ranks: wait.ranks.clone(),
            for_ms: milliseconds(wait.since.elapsed()),
            on_device,
        };
        let state = match (&self.waits, &self.stands) {
            (Some(wait), _) => waits(wait, false),
            (None, Some(stands)) => waits(stands, true),
            (None, None) => RankState::Computes { for_ms: milliseconds(self.quiet(tiles)) },
        };
        let Self { request, phase, layer, reached, .. } = *self;
        Activity { request, phase, layer, state, reached }
    }
}

impl Activity {
    /// Whether the rank has waited for others at least so long.
    pub(crate) fn has_waited(&self, limit: Duration) -> bool {
        matches!(self.state, RankState::Waits { for_ms, .. } if u128::from(for_ms) >= limit.as_millis())
    }

    /// The sentence about a rank that is doing this.
    pub(crate) fn of(&self, rank: usize) -> String {
        format!("rank {rank} {self}")
    }
}

impl Stall {
    /// The failure of the rank; `place` follows the rank's number and says where it runs.
    pub(crate) fn of(self, rank: usize, place: String) -> Error {
        let Self { activity, limit } = self;
        Error::Stalled { rank, place, activity: activity.to_string(), limit }
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, phase, layer, state, .. } = self;
        let seconds = |for_ms: u64| for_ms as f64 / 1000.0;
        match state {
            RankState::Computes { for_ms } => {
                f.write_str("computes")?;
                if let Some(layer) = layer {
                    write!(f, " layer {layer}")?;
                }
                write!(f, " in {phase}")?;
                if *request > 0 {
                    write!(f, " of request {request}")?;
                }
                write!(f, ", {:.1} s after its last progress", seconds(*for_ms))
            }
            RankState::Waits { operation, call, ranks, for_ms, on_device } => {
                let what = if *on_device { "waits on its device" } else { "waits" };
                write!(f, "{what} for {:.1} s", seconds(*for_ms))?;
                if !ranks.is_empty() {
                    write!(f, " for ranks {ranks:?}")?;
                }
                write!(f, " in {} (call {call}, {phase})", operation.name())
            }
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
