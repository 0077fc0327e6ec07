//! The parts that all backends share: a rank's calls with their checks, counters and deadlines
//! ([`Member`]), and the place where the parts of a call meet ([`hub::Hub`]).
//!
//! A backend is an [`Endpoint`]: it puts this rank's part of a call before the others and brings
//! theirs here.

pub mod call;
mod check;
mod gate;
pub mod hub;
pub mod liveness;
mod meeting;
mod monitor;
pub mod points;
mod prepare;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Tensor;
use tributary_protocol::{Phase, within_limit};

use self::call::{Call, Contribution, Payload};
pub use self::hub::{Patience, Verdict};
use self::liveness::Liveness;
pub use self::meeting::Received;
pub use self::monitor::{GroupMonitor, LateRanks};
use self::points::Points;
use crate::{Aside, Collective, Communicator, Error, KeptFree, Pending, Result, Start, Traffic};

/// The deadline of calls before the first [`Communicator::set_deadline`].
pub const FIRST_DEADLINE: Duration = Duration::from_secs(60);

/// A rank's end of a backend: the way by which its calls reach the other ranks.
pub trait Endpoint {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world(&self) -> usize;

    /// The record of the rank's progress.
    fn liveness(&self) -> &Liveness;

    /// Sets the rank's activity, for ranks that wait for it, and the longest time of its next
    /// calls.
    fn enter(&self, patience: Patience) {
        self.liveness().enter(patience.phase, patience.deadline);
    }

    /// Whether the group still lives.
    ///
    /// # Errors
    /// Returns the cause of the group's death.
    fn alive(&self) -> Result<()>;

    /// Puts this rank's part into a call.
    ///
    /// # Errors
    /// Returns an error if the group is dead, or if the call does not fit the other ranks' calls.
    fn put(&self, sequence: u64, part: Contribution) -> Result<()>;

    /// Puts this rank's parts into calls that follow each other from `first` on; a cost that they
    /// share is paid once.
    ///
    /// # Errors
    /// Fails as [`put`](Self::put) does.
    fn put_all(&self, first: u64, parts: Vec<Contribution>) -> Result<()> {
        (first..).zip(parts).try_for_each(|(sequence, part)| self.put(sequence, part))
    }

    /// Waits until a call has all that this rank needs of it, and takes that out.
    ///
    /// # Errors
    /// Returns an error if the group is dead, or if the deadline has passed.
    fn take(&self, sequence: u64, patience: Patience) -> Result<Received>;

    /// Ends the group; the first cause counts. Gives the error that this rank sees.
    fn kill(&self, error: Error) -> Error;

    /// The multiprocessors that the messages need of the rank's GPU; none by default.
    fn kept_free(&self) -> KeptFree {
        KeptFree::default()
    }

    /// Bytes of the rank's GPU that the messages' buffers take.
    fn message_bytes(&self) -> u64 {
        0
    }

    /// The rank's control points.
    fn points(&self) -> &Points;

    /// A monitor of the group for another thread of this rank.
    fn monitor(&self) -> Arc<dyn GroupMonitor>;

    /// Waits until the device has passed the calls that were waited for, where the device waits
    /// instead of the thread: bytes that are sent next may depend on tensors of those calls. This
    /// is not counted as a wait for other ranks.
    ///
    /// # Errors
    /// Returns an error if the group is dead.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Time that the device has waited in each call that it has passed since the last query, by the
    /// call's sequence number, where the device waits instead of the thread. Later queries return
    /// the calls that it has not passed yet.
    fn device_waits(&self) -> Vec<(u64, Duration)> {
        Vec::new()
    }
}

/// The communicator of one rank. It stays on the thread that made it.
pub struct Member<E: Endpoint> {
    endpoint: E,
    /// Sequence number of the next call.
    next: u64,
    patience: Patience,
    /// Calls that were started and not waited for.
    started: BTreeMap<u64, Started>,
    /// Counters by laps; there is at least one from `base` on.
    laps: Vec<Traffic>,
    /// Laps that are set aside: they lie before the others.
    base: usize,
    /// Calls that were waited for and that a device has not passed: their kinds, and the laps that
    /// they belong to.
    on_device: BTreeMap<u64, (Collective, usize)>,
    stays: PhantomData<*const ()>,
}

/// The counts of a call that are added up when it ends.
struct Started {
    kind: Collective,
    sent_bytes: u64,
    received_bytes: u64,
    /// Time that the start took.
    in_start: Duration,
}

impl Started {
    fn of(call: &Call, rank: usize) -> Self {
        Self {
            kind: call.kind(),
            sent_bytes: call.sent_bytes(rank),
            received_bytes: call.received_bytes(rank),
            in_start: Duration::ZERO,
        }
    }
}

impl<E: Endpoint> Member<E> {
    /// A communicator on this thread.
    pub fn new(endpoint: E) -> Self {
        Self {
            endpoint,
            next: 0,
            patience: Patience { phase: Phase::Start, deadline: FIRST_DEADLINE },
            started: BTreeMap::new(),
            laps: vec![Traffic::default()],
            base: 0,
            on_device: BTreeMap::new(),
            stays: PhantomData,
        }
    }

    /// Its end of the backend.
    pub(crate) fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// Its end of the backend, to be set up.
    pub(crate) fn endpoint_mut(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// The communicator of the same rank over another endpoint, made from this one; it goes on
    /// where this one is.
    pub(crate) fn move_to<F: Endpoint>(self, make: impl FnOnce(E, Patience) -> Result<F>) -> Result<Member<F>> {
        let Self { endpoint, next, patience, .. } = self;
        let endpoint = make(endpoint, patience)?;
        Ok(Member { next, patience, ..Member::new(endpoint) })
    }

    /// The counters of the lap that runs.
    fn lap(&mut self) -> &mut Traffic {
        self.laps.last_mut().expect("there is at least one lap")
    }

    /// Drops the laps that are not set aside. Waits in them that a device has not passed are not
    /// counted.
    fn drop_laps(&mut self) {
        let base = self.base;
        self.laps.truncate(base);
        self.on_device.retain(|_, (_, lap)| *lap < base);
    }

    /// Counts the known waits of a device, in their laps.
    fn count_device_waits(&mut self) {
        for (sequence, time) in self.endpoint.device_waits() {
            // A call that was waited for before the last reset is not known any more.
            if let Some((kind, lap)) = self.on_device.remove(&sequence) {
                self.laps[lap].waited(kind, time);
            }
        }
    }

    /// Starts consecutive calls; the time since `began` counts for the first one.
    fn start_all(&mut self, parts: Vec<Contribution>, began: Instant) -> Result<Vec<Pending>> {
        let (rank, first) = (self.endpoint.rank(), self.next);
        let started: Vec<Started> = parts.iter().map(|part| Started::of(&part.call, rank)).collect();
        self.next += parts.len() as u64;
        self.endpoint.put_all(first, parts)?;
        let mut pending = Vec::with_capacity(started.len());
        for (sequence, mut started) in (first..).zip(started) {
            if sequence == first {
                started.in_start = began.elapsed();
            }
            self.started.insert(sequence, started);
            pending.push(Pending { sequence });
        }
        Ok(pending)
    }

    /// Counts the known waits at control points, in the current lap: a point is a barrier with a
    /// word.
    fn count_points(&mut self) {
        let (passed, time) = self.endpoint.points().waited();
        if passed > 0 {
            let lap = self.lap();
            lap.waited(Collective::Barrier, time);
            lap.entries.entry(Collective::Barrier).or_default().calls += passed;
        }
    }

    fn start(&mut self, call: Call, payload: Payload, began: Instant) -> Result<Pending> {
        let mut pending = self.start_all(vec![Contribution { call, payload }], began)?;
        Ok(pending.pop().expect("one part makes one call"))
    }

    fn finish(&mut self, pending: Pending) -> Result<Received> {
        let began = Instant::now();
        let Some(started) = self.started.remove(&pending.sequence) else {
            let expected = "a call that this communicator has started";
            return Err(self.refuse(pending.sequence, "a wait for a foreign call", expected));
        };
        let outcome = self.endpoint.take(pending.sequence, self.patience);
        if matches!(&outcome, Ok(received) if received.on_device) {
            self.on_device.insert(pending.sequence, (started.kind, self.laps.len() - 1));
        } else {
            self.lap().waited(started.kind, started.in_start + began.elapsed());
            self.count_device_waits();
        }
        let received = outcome?;
        self.lap().count(started.kind, started.sent_bytes, started.received_bytes);
        Ok(received)
    }
}

impl<E: Endpoint> Communicator for Member<E> {
    fn rank(&self) -> usize {
        self.endpoint.rank()
    }

    fn size(&self) -> usize {
        self.endpoint.world()
    }

    fn liveness(&self) -> Liveness {
        self.endpoint.liveness().clone()
    }

    fn points(&self) -> Points {
        self.endpoint.points().clone()
    }

    fn kept_free(&self) -> KeptFree {
        self.endpoint.kept_free()
    }

    fn message_bytes(&self) -> u64 {
        self.endpoint.message_bytes()
    }

    fn set_deadline(&mut self, phase: Phase, deadline: Duration) {
        self.patience = Patience { phase, deadline };
        self.endpoint.enter(self.patience);
        self.count_device_waits();
    }

    fn start_together(&mut self, starts: &[Start<'_>]) -> Result<Vec<Pending>> {
        let began = Instant::now();
        let parts = (self.next..).zip(starts).map(|(sequence, start)| self.prepare(sequence, *start));
        let parts = parts.collect::<Result<_>>()?;
        self.start_all(parts, began)
    }

    fn wait(&mut self, pending: Pending) -> Result<Vec<Tensor>> {
        Ok(self.finish(pending)?.tensors)
    }

    fn finish_started(&mut self) -> Result<()> {
        while let Some(&sequence) = self.started.keys().next() {
            self.finish(Pending { sequence })?;
        }
        Ok(())
    }

    fn broadcast_bytes(&mut self, root: usize, bytes: Option<Vec<u8>>) -> Result<Vec<u8>> {
        self.endpoint.settle()?;
        let began = Instant::now();
        self.is_rank(self.next, Collective::BroadcastBytes, root)?;
        let is_root = root == self.rank();
        if bytes.is_some() != is_root {
            let found = format!("broadcast-bytes from rank {root}, {}", given(bytes.is_some()));
            return Err(self.refuse(self.next, found, given(is_root)));
        }
        within_limit(bytes.as_ref().map_or(0, Vec::len))?;
        let payload = Payload { tensors: Vec::new(), bytes: bytes.map(Arc::new) };
        let pending = self.start(Call::BroadcastBytes { root }, payload, began)?;
        let mut received = self.finish(pending)?;
        let bytes = received.bytes.pop().expect("a finished broadcast has the root's bytes");
        let length = bytes.len() as u64;
        let others = self.size() as u64 - 1;
        let entry = self.lap().entries.entry(Collective::BroadcastBytes).or_default();
        entry.sent_bytes += if is_root { length * others } else { 0 };
        entry.received_bytes += if is_root { 0 } else { length };
        Ok(Arc::unwrap_or_clone(bytes))
    }

    fn gather_bytes(&mut self, root: usize, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.endpoint.settle()?;
        let began = Instant::now();
        self.is_rank(self.next, Collective::GatherBytes, root)?;
        let is_root = root == self.rank();
        within_limit(bytes.len())?;
        let sent = if is_root { 0 } else { bytes.len() as u64 };
        let payload = Payload { tensors: Vec::new(), bytes: Some(Arc::new(bytes)) };
        let pending = self.start(Call::GatherBytes { root }, payload, began)?;
        let received: Vec<Vec<u8>> = self.finish(pending)?.bytes.into_iter().map(Arc::unwrap_or_clone).collect();
        let lengths = received.iter().enumerate().filter(|(rank, _)| *rank != root);
        let entry = self.lap().entries.entry(Collective::GatherBytes).or_default();
        entry.sent_bytes += sent;
        entry.received_bytes += lengths.map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        Ok(received)
    }

    fn barrier(&mut self) -> Result<()> {
        self.endpoint.settle()?;
        let pending = self.start(Call::Barrier, Payload::default(), Instant::now())?;
        self.finish(pending).map(drop)
    }

    fn abort(&mut self, cause: &str, exit_code: u8) {
        self.endpoint.kill(Error::Aborted { rank: self.rank(), cause: cause.to_owned(), exit_code });
    }

    fn start_lap(&mut self) -> usize {
        self.count_points();
        self.laps.push(Traffic::default());
        self.laps.len() - 1 - self.base
    }

    fn laps(&mut self) -> Vec<Traffic> {
        self.count_points();
        self.count_device_waits();
        self.laps[self.base..].to_vec()
    }

    fn reset_traffic(&mut self) {
        // Earlier waits are not counted.
        self.endpoint.points().waited();
        self.drop_laps();
        self.laps.push(Traffic::default());
    }

    fn set_aside(&mut self) -> Aside {
        self.count_points();
        let aside = Aside { base: self.base, patience: self.patience };
        self.base = self.laps.len();
        self.laps.push(Traffic::default());
        aside
    }

    fn take_up(&mut self, aside: Aside) {
        self.count_device_waits();
        self.drop_laps();
        self.base = aside.base;
        self.set_deadline(aside.patience.phase, aside.patience.deadline);
    }
}

fn given(bytes: bool) -> &'static str {
    if bytes { "with bytes" } else { "without bytes" }
}
