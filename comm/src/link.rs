//! The control channel between the coordinator and rank 0 of the same process: orders one way, events the other. Nothing leaves
//! the process, so nothing is framed.
//!
//! Both queues have a bound. A send waits for room, but not for ever.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tributary_protocol::{Event, Order};

use crate::{Error, Result};

/// How long a send waits for room in the queue.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// How often a send that waits for room looks again.
const SEND_RETRY: Duration = Duration::from_millis(1);

/// The coordinator's end.
#[derive(Debug)]
pub struct CoordinatorLink {
    orders: SyncSender<Order>,
    events: Receiver<Event>,
}

/// Rank 0's end.
#[derive(Debug)]
pub struct WorkerLink {
    orders: Receiver<Order>,
    events: SyncSender<Event>,
}

/// Makes a control channel. Each direction holds at most `capacity` messages that nobody has read.
pub fn link(capacity: usize) -> (CoordinatorLink, WorkerLink) {
    let (order_sender, order_receiver) = sync_channel(capacity);
    let (event_sender, event_receiver) = sync_channel(capacity);
    let coordinator = CoordinatorLink { orders: order_sender, events: event_receiver };
    let worker = WorkerLink { orders: order_receiver, events: event_sender };
    (coordinator, worker)
}

/// A way to tell the coordinator that the ranks have failed, for a thread that watches them: rank 0 may be the one that is
/// stuck. While it is there, the coordinator does not see that rank 0 is gone.
#[derive(Debug)]
pub struct Alarm {
    events: SyncSender<Event>,
}

impl Alarm {
    /// Sends the event to the coordinator.
    ///
    /// # Errors
    /// As [`CoordinatorLink::send`], with the coordinator at the other end.
    pub fn send(&self, event: Event) -> Result<()> {
        push(&self.events, event, "coordinator")
    }
}

impl CoordinatorLink {
    /// Sends an order to rank 0.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if rank 0 is gone, [`Error::Full`] if it does not read.
    pub fn send(&self, order: Order) -> Result<()> {
        push(&self.orders, order, "worker")
    }

    /// The next event; none if nothing comes within `timeout`.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if rank 0 is gone and everything it sent has been read.
    pub fn next(&self, timeout: Duration) -> Result<Option<Event>> {
        pull(&self.events, timeout, "worker")
    }
}

impl WorkerLink {
    /// A second way to the coordinator.
    pub fn alarm(&self) -> Alarm {
        Alarm { events: self.events.clone() }
    }

    /// The next order; none if nothing comes within `timeout`.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if the coordinator is gone and everything it sent has been read: time to stop.
    pub fn next(&self, timeout: Duration) -> Result<Option<Order>> {
        pull(&self.orders, timeout, "coordinator")
    }

    /// Sends an event to the coordinator.
    ///
    /// # Errors
    /// As [`CoordinatorLink::send`], with the coordinator at the other end.
    pub fn send(&self, event: Event) -> Result<()> {
        push(&self.events, event, "coordinator")
    }
}

fn push<T>(queue: &SyncSender<T>, mut message: T, peer: &'static str) -> Result<()> {
    let started = Instant::now();
    loop {
        match queue.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(_)) => return Err(Error::Disconnected(peer)),
            Err(TrySendError::Full(_)) if started.elapsed() >= SEND_LIMIT => {
                return Err(Error::Full { peer, after: SEND_LIMIT });
            }
            Err(TrySendError::Full(unsent)) => message = unsent,
        }
        std::thread::sleep(SEND_RETRY);
    }
}

fn pull<T>(queue: &Receiver<T>, timeout: Duration, peer: &'static str) -> Result<Option<T>> {
    match queue.recv_timeout(timeout) {
        Ok(message) => Ok(Some(message)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(Error::Disconnected(peer)),
    }
}
