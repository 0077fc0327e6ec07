//! How many requests wait and run: told by the conductor, read by whoever asks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What waits and runs at a desk. Whoever holds it hands nothing in, and keeps no conductor at work.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    waiting: AtomicUsize,
    running: AtomicUsize,
    paused: AtomicUsize,
    /// Requests that were handed in and that the conductor has not taken yet.
    on_the_way: AtomicUsize,
    /// Requests whose text is being read, or waits for it.
    reading: AtomicUsize,
    /// Requests of each client that wait, and the most that one may have.
    askers: Mutex<HashMap<u64, usize>>,
    most_each: AtomicUsize,
    /// Seconds that a request's turn took lately; 0 before the first.
    pace_s: Mutex<f64>,
    /// The most that may wait, and whether that is known.
    most: AtomicUsize,
    is_bound: AtomicBool,
    sequences: Mutex<Vec<usize>>,
    is_closed: AtomicBool,
    is_left: AtomicBool,
}

/// A client's place among those that wait, from the moment when its request is announced until its prefill begins or it is over.
#[derive(Debug)]
pub struct Waits {
    tally: Tally,
    asker: u64,
    is_reading: bool,
}

impl Waits {
    /// Who asks.
    pub fn asker(&self) -> u64 {
        self.asker
    }

    /// Its text has been read: the conductor counts it from here on.
    pub(super) fn has_read(&mut self) {
        if std::mem::replace(&mut self.is_reading, false) {
            self.tally.0.reading.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.has_read();
        let mut askers = self.tally.askers();
        if let Some(count) = askers.get_mut(&self.asker) {
            *count -= 1;
            if *count == 0 {
                askers.remove(&self.asker);
            }
        }
    }
}

impl Tally {
    /// Says how many requests wait, run, and pause, and how many sequences each rank holds.
    pub(super) fn set(&self, [waiting, running, paused]: [usize; 3], sequences: Vec<usize>) {
        self.0.waiting.store(waiting, Ordering::Relaxed);
        self.0.running.store(running, Ordering::Relaxed);
        self.0.paused.store(paused, Ordering::Relaxed);
        *self.0.sequences.lock().unwrap_or_else(PoisonError::into_inner) = sequences;
    }

    /// Says how many requests may wait, and how many of one client.
    pub(super) fn bound(&self, most: usize, most_each: usize) {
        self.0.most.store(most, Ordering::Relaxed);
        self.0.most_each.store(most_each, Ordering::Relaxed);
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

    /// Requests that wait for their turn; those whose text is still being read are among them, and those that were handed in during an
    /// order, and that the conductor has not looked at.
    pub fn waiting(&self) -> usize {
        let Numbers { waiting, on_the_way, reading, .. } = &*self.0;
        [waiting, on_the_way, reading].into_iter().map(|number| number.load(Ordering::Relaxed)).sum()
    }

    /// A place for one more request of this client; none if it has as many as a client may have.
    pub(super) fn announce(&self, asker: u64) -> Option<Waits> {
        let most = self.0.most_each.load(Ordering::Relaxed);
        let mut askers = self.askers();
        let count = askers.entry(asker).or_default();
        if self.0.is_bound.load(Ordering::Acquire) && *count >= most {
            return None;
        }
        *count += 1;
        self.0.reading.fetch_add(1, Ordering::Relaxed);
        Some(Waits { tally: self.clone(), asker, is_reading: true })
    }

    /// Says how long a request's turn took.
    pub(super) fn took(&self, seconds: f64) {
        let mut pace = self.0.pace_s.lock().unwrap_or_else(PoisonError::into_inner);
        *pace = if *pace == 0.0 { seconds } else { 0.8 * *pace + 0.2 * seconds };
    }

    /// Seconds until a request that comes now would have its turn, by the number of those that wait and by how long the last ones took.
    pub fn expected_wait_s(&self) -> f64 {
        self.waiting() as f64 * *self.0.pace_s.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn askers(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.0.askers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that the ranks are at: being prefilled or decoded.
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::Relaxed)
    }

    /// Those of them whose next token waits for memory, until another one has ended.
    pub fn paused(&self) -> usize {
        self.0.paused.load(Ordering::Relaxed)
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
