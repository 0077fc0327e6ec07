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
    sequences: Mutex<Vec<usize>>,
    is_closed: AtomicBool,
}

impl Tally {
    /// Says how many requests wait and run, and how many sequences each rank holds.
    pub(super) fn set(&self, waiting: usize, running: usize, sequences: Vec<usize>) {
        self.0.waiting.store(waiting, Ordering::Relaxed);
        self.0.running.store(running, Ordering::Relaxed);
        *self.0.sequences.lock().unwrap_or_else(PoisonError::into_inner) = sequences;
    }

    /// Says that no more requests are taken.
    pub(super) fn close(&self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
    }

    /// Requests that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
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
