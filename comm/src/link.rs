//! The control channel between the coordinator and rank 0 of the same process: plans one way, events the other, as framed
//! bytes, so that it behaves as a socket would.
//!
//! Both queues have a bound. A send waits for room, but not for ever.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tributary_protocol::{Event, Plan, decode, encode};

use crate::{Error, Result};

/// How long a send waits for room in the queue.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// How often a send that waits for room looks again.
const SEND_RETRY: Duration = Duration::from_millis(1);

/// The coordinator's end.
#[derive(Debug)]
pub struct CoordinatorLink {
    plans: SyncSender<Vec<u8>>,
    events: Receiver<Vec<u8>>,
}

/// Rank 0's end.
#[derive(Debug)]
pub struct WorkerLink {
    plans: Receiver<Vec<u8>>,
    events: SyncSender<Vec<u8>>,
}

/// Makes a control channel. Each direction holds at most `capacity` messages that nobody has read.
pub fn link(capacity: usize) -> (CoordinatorLink, WorkerLink) {
    let (plan_sender, plan_receiver) = sync_channel(capacity);
    let (event_sender, event_receiver) = sync_channel(capacity);
    let coordinator = CoordinatorLink { plans: plan_sender, events: event_receiver };
    let worker = WorkerLink { plans: plan_receiver, events: event_sender };
    (coordinator, worker)
}

/// A way to tell the coordinator that the ranks have failed, for a thread that watches them: rank 0 may be the one that is
/// stuck. While it is there, the coordinator does not see that rank 0 is gone.
#[derive(Debug)]
pub struct Alarm {
    events: SyncSender<Vec<u8>>,
}

impl Alarm {
    /// Tells it, if the coordinator reads.
    ///
    /// # Errors
    /// As [`CoordinatorLink::send`], with the coordinator at the other end.
    pub fn send(&self, event: &Event) -> Result<()> {
        push(&self.events, encode(event)?, "coordinator")
    }
}

impl CoordinatorLink {
    /// Sends a plan to rank 0.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if rank 0 is gone, [`Error::Full`] if it does not read, [`Error::Frame`] if the plan is too
    /// long for a frame.
    pub fn send(&self, plan: &Plan) -> Result<()> {
        push(&self.plans, encode(plan)?, "worker")
    }

    /// The next event; none if nothing comes within `timeout`.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if rank 0 is gone and everything it sent has been read.
    pub fn next(&self, timeout: Duration) -> Result<Option<Event>> {
        Ok(pull(&self.events, timeout, "worker")?.map(|frame| decode(&frame)).transpose()?)
    }
}

impl WorkerLink {
    /// A second way to the coordinator.
    pub fn alarm(&self) -> Alarm {
        Alarm { events: self.events.clone() }
    }

    /// The next plan; none if nothing comes within `timeout`.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if the coordinator is gone and everything it sent has been read: time to stop.
    pub fn next(&self, timeout: Duration) -> Result<Option<Plan>> {
        Ok(pull(&self.plans, timeout, "coordinator")?.map(|frame| decode(&frame)).transpose()?)
    }

    /// Sends an event to the coordinator.
    ///
    /// # Errors
    /// As [`CoordinatorLink::send`], with the coordinator at the other end.
    pub fn send(&self, event: &Event) -> Result<()> {
        push(&self.events, encode(event)?, "coordinator")
    }
}

fn push(queue: &SyncSender<Vec<u8>>, mut frame: Vec<u8>, peer: &'static str) -> Result<()> {
    let started = Instant::now();
    loop {
        match queue.try_send(frame) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(_)) => return Err(Error::Disconnected(peer)),
            Err(TrySendError::Full(_)) if started.elapsed() >= SEND_LIMIT => {
                return Err(Error::Full { peer, after: SEND_LIMIT });
            }
            Err(TrySendError::Full(unsent)) => frame = unsent,
        }
        std::thread::sleep(SEND_RETRY);
    }
}

fn pull(queue: &Receiver<Vec<u8>>, timeout: Duration, peer: &'static str) -> Result<Option<Vec<u8>>> {
    match queue.recv_timeout(timeout) {
        Ok(frame) => Ok(Some(frame)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(Error::Disconnected(peer)),
    }
}
