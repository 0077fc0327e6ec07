//! How many requests wait and run: told by the conductor, read by whoever asks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What waits and runs at a desk. Whoever holds it hands nothing in, and keeps no conductor at work.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    waiting: AtomicUsize,
    running: AtomicUsize,
    /// Requests that were handed in and that the conductor has not taken yet.
    on_the_way: AtomicUsize,
    /// The most that may wait, and whether that is known.
    most: AtomicUsize,
    is_bound: AtomicBool,
    sequences: Mutex<Vec<usize>>,
    is_closed: AtomicBool,
    is_left: AtomicBool,
}

impl Tally {
    /// Says how many requests wait and run, and how many sequences each rank holds.
    pub(super) fn set(&self, waiting: usize, running: usize, sequences: Vec<usize>) {
        self.0.waiting.store(waiting, Ordering::Relaxed);
        self.0.running.store(running, Ordering::Relaxed);
        *self.0.sequences.lock().unwrap_or_else(PoisonError::into_inner) = sequences;
    }

    /// Says how many requests may wait.
    pub(super) fn bound(&self, most: usize) {
        self.0.most.store(most, Ordering::Relaxed);
        self.0.is_bound.store(true, Ordering::Release);
    }

    /// Whether as many wait as may.
    pub(super) fn is_full(&self) -> bool {
        self.0.is_bound.load(Ordering::Acquire) && self.waiting() >= self.0.most.load(Ordering::Relaxed)
    }

    /// A request is handed in.
    pub(super) fn arrives(&self) {
        self.0.on_the_way.fetch_add(1, Ordering::Relaxed);
    }

    /// The conductor has taken it, or nobody will.
    pub(super) fn taken(&self) {
        self.0.on_the_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Says that nobody will hand in any more.
    pub(super) fn leave(&self) {
        self.0.is_left.store(true, Ordering::SeqCst);
    }

    /// Whether nobody will.
    pub(super) fn is_left(&self) -> bool {
        self.0.is_left.load(Ordering::SeqCst)
    }

    /// Says that no more requests are taken.
    pub(super) fn close(&self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
    }

    /// Requests that wait for their turn; those that were handed in during an order, and that the conductor has not looked at, are
    /// among them.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed) + self.0.on_the_way.load(Ordering::Relaxed)
    }

    /// Requests that the ranks are at: being prefilled or decoded.
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::Relaxed)
    }

    /// Sequences of which each rank holds keys and values, in rank order; a rank without a number holds none.
    pub fn sequences(&self) -> Vec<usize> {
        self.0.sequences.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the conductor has ended, or is about to and takes nothing more.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::SeqCst)
    }
}
