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
    signals: Signals,
}

/// Rank 0's end.
#[derive(Debug)]
pub struct WorkerLink {
    orders: Receiver<Order>,
    events: SyncSender<Event>,
    signals: Signals,
}

/// What the coordinator wants of the prefill that rank 0 was sent last: that it is cancelled, or
/// that it halts for other orders. Clones are of the same link. The ranks look here at their next
/// control point.
#[derive(Debug, Clone, Default)]
pub struct Signals(Arc<AtomicU64>);

/// Bits of a signal below the request's number.
const CANCEL: u64 = 1;
const HALT: u64 = 2;
const BITS: u32 = 2;

impl Signals {
    /// The prefill of a request begins: signals are for this one from now on.
    fn begin(&self, request: u64) {
        self.0.store(request << BITS, Ordering::SeqCst);
    }

    fn change(&self, request: u64, change: impl Fn(u64) -> u64) -> bool {
        let changed = |now: u64| (now >> BITS == request && change(now) != now).then(|| change(now));
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed).is_ok()
    }

    /// Cancels the prefill of a request, if it is the one that was sent last; a request that is
    /// elsewhere is passed over.
    pub fn cancel(&self, request: u64) {
        // A request that is not being prefilled is not cancelled here.
        self.change(request, |now| now | CANCEL);
    }

    /// Halts the prefill of a request once, at its next control point, if it is the one that was
    /// sent last: there the ranks carry out other orders until [`Order::Resume`].
    pub fn halt(&self, request: u64) {
        self.change(request, |now| now | HALT);
    }

    /// Whether the prefill of this request is to halt; it is asked once.
    pub fn take_halt(&self, request: u64) -> bool {
        self.change(request, |now| now & !HALT)
    }

    /// Whether the prefill of this request is to be cancelled.
    pub fn is_cancelled(&self, request: u64) -> bool {
        let now = self.0.load(Ordering::SeqCst);
        now >> BITS == request && now & CANCEL != 0
    }
}

/// Makes a control channel. Each direction holds at most `capacity` unread messages.
pub fn link(capacity: usize) -> (CoordinatorLink, WorkerLink) {
    let (order_sender, order_receiver) = sync_channel(capacity);
    let (event_sender, event_receiver) = sync_channel(capacity);
    let signals = Signals::default();
    let coordinator = CoordinatorLink { orders: order_sender, events: event_receiver, signals: signals.clone() };
    let worker = WorkerLink { orders: order_receiver, events: event_sender, signals };
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
            self.signals.begin(plan.request);
        }
        push(&self.orders, order, "worker")
    }

    /// The way to cancel or halt the prefill that was sent last.
    pub fn signals(&self) -> &Signals {
        &self.signals
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

    /// What the coordinator wants of the prefill that it sent last.
    pub fn signals(&self) -> &Signals {
        &self.signals
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
        let signals = Signals::default();
        signals.begin(3);
        signals.cancel(4);
        assert!(!signals.is_cancelled(3) && !signals.is_cancelled(4));
        signals.cancel(3);
        signals.cancel(4);
        assert!(signals.is_cancelled(3) && !signals.is_cancelled(4), "another one's cancelling takes nothing back");
        signals.begin(4);
        assert!(!signals.is_cancelled(3) && !signals.is_cancelled(4), "what was said of request 3 is not said of 4");
    }

    #[test]
    fn a_prefill_halts_once_a_signal() {
        let signals = Signals::default();
        signals.begin(3);
        signals.halt(4);
        assert!(!signals.take_halt(3) && !signals.take_halt(4), "request 4 is not the one sent last");
        signals.halt(3);
        signals.halt(3);
        signals.cancel(3);
        assert!(signals.is_cancelled(3), "a halt does not hide a cancellation");
        assert!(!signals.take_halt(4) && signals.take_halt(3) && !signals.take_halt(3));
        assert!(signals.is_cancelled(3), "nor does its end");
        signals.halt(3);
        signals.begin(4);
        assert!(!signals.take_halt(3) && !signals.take_halt(4));
    }
}
