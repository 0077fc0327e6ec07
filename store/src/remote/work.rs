//! Work of the remote's thread: each request in its turn, in a bounded number of attempts, none of
//! them for a store that is down. Outcomes are counted here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tributary_protocol::ChunkKey;

use super::counters::{Operation, RemoteCounters};
use super::health::{Health, Leave};
use super::limits::RemoteLimits;
use super::place::{Listed, Place};
use super::reason::Reason;
use crate::folder::Entry;

/// Whether the caller has waited in vain. An attempt that is abandoned for that reason counts as a
/// failure of the store. Otherwise each request would wait anew for a store that accepts
/// connections and never answers.
#[derive(Clone, Default)]
pub struct Late(Arc<AtomicBool>);

impl Late {
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// State that callers and the remote's thread share.
pub struct Work {
    limits: RemoteLimits,
    place: Place,
    health: Mutex<Health>,
    counters: Mutex<RemoteCounters>,
    /// Permits of requests in flight.
    turns: Semaphore,
    /// Chunks that may be sent at once: each needs a turn too.
    sending: Semaphore,
}

/// A thread that panicked with a lock has left the data under it consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    pub fn new(place: Place, limits: RemoteLimits) -> Self {
        let (health, counters) = (Mutex::new(Health::new(&limits)), Mutex::default());
        let at_once = limits.at_once.clamp(1, Semaphore::MAX_PERMITS);
        let (turns, sending) = (Semaphore::new(at_once), Semaphore::new((at_once / 2).max(1)));
        Self { limits, place, health, counters, turns, sending }
    }

    pub fn counters(&self) -> RemoteCounters {
        *lock(&self.counters)
    }

    /// Whether no request may be made now.
    pub fn is_down(&self) -> bool {
        lock(&self.health).is_down(Instant::now())
    }

    /// Counts a request that ended for this reason.
    pub fn failed(&self, operation: Operation, reason: Reason) -> Reason {
        lock(&self.counters).failed(operation, reason);
        reason
    }

    /// Gets a chunk of at most `most_bytes` bytes.
    pub async fn get(&self, key: &ChunkKey, most_bytes: u64, late: &Late) -> Result<Bytes, Reason> {
        let _turn = self.turns.acquire().await.expect("it is never closed");
        let attempt = || async {
            let answer = timeout(self.limits.timeout, self.place.get(key, most_bytes)).await;
            answer.unwrap_or(Err(Reason::Timeout))
        };
        let bytes = self.attempts(Operation::Get, late, attempt).await?;
        lock(&self.counters).read_bytes += bytes.len() as u64;
        Ok(bytes)
    }

    /// Sends a chunk.
    pub async fn put(&self, key: &ChunkKey, bytes: Bytes) -> Result<(), Reason> {
        let _sends = self.sending.acquire().await.expect("it is never closed");
        let _turn = self.turns.acquire().await.expect("it is never closed");
        let attempt = || async {
            let answer = timeout(self.limits.timeout, self.place.put(key, bytes.clone())).await;
            answer.unwrap_or(Err(Reason::Timeout))
        };
        self.attempts(Operation::Put, &Late::default(), attempt).await?;
        lock(&self.counters).written_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Lists at most `most` chunks.
    pub async fn list(&self, most: usize, late: &Late) -> Result<Vec<Entry>, Reason> {
        let _turn = self.turns.acquire().await.expect("it is never closed");
        // Received parts stay when a later attempt fails.
        let listed = tokio::sync::Mutex::new(Listed::default());
        let attempt = || async { self.place.list(most, self.limits.timeout, &mut *listed.lock().await).await };
        self.attempts(Operation::List, late, attempt).await?;
        Ok(listed.into_inner().entries)
    }

    /// Makes attempts until one is answered. Between them it waits; where the store goes down it
    /// stops.
    async fn attempts<T, A>(&self, operation: Operation, late: &Late, attempt: impl Fn() -> A) -> Result<T, Reason>
    where
        A: Future<Output = Result<T, Reason>>,
    {
        let (began, mut attempts, mut last) = (Instant::now(), 0, Reason::Down);
        let answer = loop {
            let Some(trial) = self.trial(late) else { break Err(last) };
            attempts += 1;
            match attempt().await {
                Err(reason) if reason.may_pass() => {
                    trial.failed();
                    last = reason;
                }
                answer => {
                    trial.answered();
                    break answer;
                }
            }
            if attempts >= self.limits.attempts || self.is_down() {
                break Err(last);
            }
            sleep(self.limits.pause_behind(attempts)).await;
        };
        if attempts > 0 {
            lock(&self.counters).asked(operation, began.elapsed(), attempts);
        }
        answer.map_err(|reason| self.failed(operation, reason))
    }

    fn trial<'a>(&'a self, late: &'a Late) -> Option<Trial<'a>> {
        let leave = lock(&self.health).leave(Instant::now())?;
        Some(Trial { work: self, leave, late, is_over: false })
    }
}

/// An attempt in progress. Dropping it says nothing about the store, unless the store was late.
struct Trial<'a> {
    work: &'a Work,
    leave: Leave,
    late: &'a Late,
    is_over: bool,
}

impl Trial<'_> {
    fn answered(mut self) {
        self.is_over = true;
        lock(&self.work.health).answered();
    }

    fn failed(mut self) {
        self.is_over = true;
        self.note_failure();
    }

    fn note_failure(&self) {
        let goes_down = lock(&self.work.health).failed(self.leave, Instant::now());
        lock(&self.work.counters).downs += u64::from(goes_down);
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        match self.is_over {
            true => {}
            false if self.late.0.load(Ordering::SeqCst) => self.note_failure(),
            false => lock(&self.work.health).let_go(self.leave),
        }
    }
}
