//! The control channel between the coordinator and rank 0 of the same process: orders one way,
//! events the other. Nothing leaves the process, so nothing is framed.
//!
//! Both queues have a bound. A send waits for room, but not for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tributary_protocol::{Event, Order};

use crate::{Error, Result};

/// Longest wait of a send for room in the queue.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// Interval at which a send that waits for room looks again.
const SEND_RETRY: Duration = Duration::from_millis(1);

/// The coordinator's end.
#[derive(Debug)]
pub struct CoordinatorLink {
    orders: SyncSender<Order>,
    events: Receiver<Event>,
    cancels: Cancels,
}

/// Rank 0's end.
#[derive(Debug)]
pub struct WorkerLink {
    orders: Receiver<Order>,
    events: SyncSender<Event>,
    cancels: Cancels,
}

/// The prefill that rank 0 was sent last, and whether it is to be cancelled. Clones are of the same
/// link. The ranks look here at their next control point.
#[derive(Debug, Clone, Default)]
pub struct Cancels(Arc<AtomicU64>);

impl Cancels {
    /// The prefill of a request begins: only this one can be cancelled from now on.
    fn begin(&self, request: u64) {
        self.0.store(request << 1, Ordering::SeqCst);
    }

    /// Cancels the prefill of a request, if it is the one that was sent last; a request that is
    /// elsewhere is passed over.
    pub fn cancel(&self, request: u64) {
        // A request that is not being prefilled is not cancelled here.
        let _ = self.0.compare_exchange(request << 1, request << 1 | 1, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether the prefill of this request is to be cancelled.
    pub fn is_cancelled(&self, request: u64) -> bool {
        self.0.load(Ordering::SeqCst) == request << 1 | 1
    }
}

/// Makes a control channel. Each direction holds at most `capacity` unread messages.
pub fn link(capacity: usize) -> (CoordinatorLink, WorkerLink) {
    let (order_sender, order_receiver) = sync_channel(capacity);
    let (event_sender, event_receiver) = sync_channel(capacity);
    let cancels = Cancels::default();
    let coordinator = CoordinatorLink { orders: order_sender, events: event_receiver, cancels: cancels.clone() };
    let worker = WorkerLink { orders: order_receiver, events: event_sender, cancels };
    (coordinator, worker)
}

/// A way to tell the coordinator that the ranks have failed, for a thread that watches them: rank 0
/// may be the one that is stuck. While it is there, the coordinator does not see that rank 0 is
/// gone.
#[derive(Debug)]
pub struct Alarm {
    events: SyncSender<Event>,
}

impl Alarm {
    /// Sends the event to the coordinator.
    ///
    /// # Errors
    /// Fails as [`CoordinatorLink::send`] does, with the coordinator at the other end.
    pub fn send(&self, event: Event) -> Result<()> {
        push(&self.events, event, "coordinator")
    }
}

impl CoordinatorLink {
    /// Sends an order to rank 0.
    ///
    /// # Errors
    /// Returns [`Error::Disconnected`] if rank 0 is gone, and [`Error::Full`] if it does not read.
    pub fn send(&self, order: Order) -> Result<()> {
        if let Order::Prefill(plan) | Order::Chunks(plan) = &order {
            self.cancels.begin(plan.request);
        }
        push(&self.orders, order, "worker")
    }

    /// The way to cancel the prefill that was sent last.
    pub fn cancels(&self) -> &Cancels {
        &self.cancels
    }

    /// The next event; none if nothing comes within `timeout`.
    ///
    /// # Errors
    /// Returns [`Error::Disconnected`] if rank 0 is gone and all its messages have been read.
    pub fn next(&self, timeout: Duration) -> Result<Option<Event>> {
        pull(&self.events, timeout, "worker")
    }
}

impl WorkerLink {
    /// A second way to the coordinator.
    pub fn alarm(&self) -> Alarm {
        Alarm { events: self.events.clone() }
    }

    /// The coordinator's cancellations of the prefill that it sent last.
    pub fn cancels(&self) -> &Cancels {
        &self.cancels
    }

    /// The next order; none if nothing comes within `timeout`.
    ///
    /// # Errors
    /// Returns [`Error::Disconnected`] if the coordinator is gone and all its messages have been
    /// read: time to stop.
    pub fn next(&self, timeout: Duration) -> Result<Option<Order>> {
        pull(&self.orders, timeout, "coordinator")
    }

    /// Sends an event to the coordinator.
    ///
    /// # Errors
    /// Fails as [`CoordinatorLink::send`] does, with the coordinator at the other end.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_prefill_that_was_sent_last_is_cancelled() {
        let cancels = Cancels::default();
        cancels.begin(3);
        cancels.cancel(4);
        assert!(!cancels.is_cancelled(3) && !cancels.is_cancelled(4));
        cancels.cancel(3);
        cancels.cancel(4);
        assert!(cancels.is_cancelled(3) && !cancels.is_cancelled(4), "another one's cancelling takes nothing back");
        cancels.begin(4);
        assert!(!cancels.is_cancelled(3) && !cancels.is_cancelled(4), "what was said of request 3 is not said of 4");
    }
}
