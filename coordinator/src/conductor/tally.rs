//! Numbers of waiting and running requests: written by the conductor, read by others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts of a queue. A holder submits nothing, and keeps no conductor running.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    waiting: AtomicUsize,
    running: AtomicUsize,
    paused: AtomicUsize,
    kept: AtomicUsize,
    held: AtomicUsize,
    /// Requests that were submitted and that the conductor has not taken yet.
    on_the_way: AtomicUsize,
    /// Requests whose text is being read, or waits for it.
    reading: AtomicUsize,
    /// Waiting requests of each client, and the maximum of one client.
    askers: Mutex<HashMap<u64, usize>>,
    most_each: AtomicUsize,
    /// Recent seconds of a request's turn; 0 before the first.
    pace_s: Mutex<f64>,
    /// Maximum number of waiting requests, and whether it is known.
    most: AtomicUsize,
    is_bound: AtomicBool,
    sequences: Mutex<Vec<usize>>,
    is_closed: AtomicBool,
    is_left: AtomicBool,
}

/// A client's place among the waiting ones, from the announcement of its request until its prefill
/// begins or it is over.
#[derive(Debug)]
pub struct Waits {
    tally: Tally,
    asker: u64,
    is_reading: bool,
}

impl Waits {
    /// The client.
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
    /// Sets the numbers of waiting, running and paused requests and of kept and held sequences, and
    /// of the sequences of which each rank has a part.
    pub(super) fn set(&self, [waiting, running, paused, kept, held]: [usize; 5], sequences: Vec<usize>) {
        self.0.waiting.store(waiting, Ordering::Relaxed);
        self.0.running.store(running, Ordering::Relaxed);
        self.0.paused.store(paused, Ordering::Relaxed);
        self.0.kept.store(kept, Ordering::Relaxed);
        self.0.held.store(held, Ordering::Relaxed);
        *self.0.sequences.lock().unwrap_or_else(PoisonError::into_inner) = sequences;
    }

    /// Sets the maximum number of waiting requests, in total and of one client.
    pub(super) fn bound(&self, most: usize, most_each: usize) {
        self.0.most.store(most, Ordering::Relaxed);
        self.0.most_each.store(most_each, Ordering::Relaxed);
        self.0.is_bound.store(true, Ordering::Release);
    }

    /// Whether the maximum number of requests is waiting.
    pub(super) fn is_full(&self) -> bool {
        self.0.is_bound.load(Ordering::Acquire) && self.waiting() >= self.0.most.load(Ordering::Relaxed)
    }

    /// Counts a submitted request.
    pub(super) fn arrives(&self) {
        self.0.on_the_way.fetch_add(1, Ordering::Relaxed);
    }

    /// The conductor has taken it, or it is rejected.
    pub(super) fn taken(&self) {
        self.0.on_the_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Marks that no more requests will be submitted.
    pub(super) fn leave(&self) {
        self.0.is_left.store(true, Ordering::SeqCst);
    }

    /// Whether no more requests will be submitted.
    pub(super) fn is_left(&self) -> bool {
        self.0.is_left.load(Ordering::SeqCst)
    }

    /// Marks that no more requests are taken.
    pub(super) fn close(&self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
    }

    /// Number of requests that wait for their turn. Those whose text is still being read count, and
    /// those submitted during an order that the conductor has not seen yet.
    pub fn waiting(&self) -> usize {
        let Numbers { waiting, on_the_way, reading, .. } = &*self.0;
        [waiting, on_the_way, reading].into_iter().map(|number| number.load(Ordering::Relaxed)).sum()
    }

    /// A place for one more request of this client; `None` if the client has its maximum.
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

    /// Records the seconds of a request's turn.
    pub(super) fn took(&self, seconds: f64) {
        let mut pace = self.0.pace_s.lock().unwrap_or_else(PoisonError::into_inner);
        *pace = if *pace == 0.0 { seconds } else { 0.8 * *pace + 0.2 * seconds };
    }

    /// Expected seconds until the turn of a request submitted now, from the number of waiting ones
    /// and the time of recent turns.
    pub fn expected_wait_s(&self) -> f64 {
        self.waiting() as f64 * *self.0.pace_s.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn askers(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.0.askers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of requests in prefill or decoding.
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::Relaxed)
    }

    /// Number of sequences of answered requests that stay for later ones.
    pub fn kept(&self) -> usize {
        self.0.kept.load(Ordering::Relaxed)
    }

    /// Number of sequences that are held for other programs.
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Number of those whose next token waits for memory, until another one has ended.
    pub fn paused(&self) -> usize {
        self.0.paused.load(Ordering::Relaxed)
    }

    /// Numbers of sequences whose keys and values each rank holds, in rank order; a rank without a
    /// number holds none.
    pub fn sequences(&self) -> Vec<usize> {
        self.0.sequences.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the conductor has ended, or is about to and takes nothing more.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::SeqCst)
    }
}
