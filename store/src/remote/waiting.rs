//! The queue of a store: the number of requests for chunks, and the chunks to send. Both are
//! bounded, and a request beyond the bound fails at once. Only `flush` waits for the store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::limits::RemoteLimits;
use super::reason::Reason;

/// The largest object that S3 takes in one request.
const MOST_SENT_BYTES: u64 = 5 << 30;

/// Requests that wait for a store or are in flight.
pub struct Waiting {
    most_requests: usize,
    most_bytes: u64,
    requests: AtomicUsize,
    queue: Mutex<Queue>,
    /// Rings when a chunk leaves the queue.
    left: Condvar,
}

/// Chunks that are being sent or wait to be.
#[derive(Default)]
struct Queue {
    chunks: usize,
    bytes: u64,
    /// Chunks that were given up since the last query.
    lost: u64,
}

impl Waiting {
    pub fn new(limits: &RemoteLimits) -> Arc<Self> {
        let (requests, queue, left) = (AtomicUsize::new(0), Mutex::default(), Condvar::new());
        let (most_requests, most_bytes) = (limits.waiting_requests, limits.waiting_bytes);
        Arc::new(Self { most_requests, most_bytes, requests, queue, left })
    }

    /// Takes a place among the requests for chunks.
    pub fn ask(self: &Arc<Self>) -> Result<Asked, Reason> {
        let more = |requests: usize| (requests < self.most_requests).then_some(requests + 1);
        match self.requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Asked(Arc::clone(self))),
            Err(_) => Err(Reason::Full),
        }
    }

    /// Takes a place in the queue for a chunk of `bytes` bytes.
    pub fn enqueue(self: &Arc<Self>, bytes: u64) -> Result<Enqueued, Reason> {
        if bytes > self.most_bytes.min(MOST_SENT_BYTES) {
            return Err(Reason::TooLarge);
        }
        let mut queue = self.queue();
        if bytes > self.most_bytes - queue.bytes {
            return Err(Reason::Full);
        }
        queue.chunks += 1;
        queue.bytes += bytes;
        Ok(Enqueued { waiting: Arc::clone(self), bytes, is_sent: false })
    }

    /// Waits until the queue is empty. Whether it is, and no chunk was given up since this was
    /// asked last.
    pub fn flush(&self, within: Duration) -> bool {
        let queue = self.queue();
        let waited = self.left.wait_timeout_while(queue, within, |queue| queue.chunks > 0);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let lost = std::mem::take(&mut queue.lost);
        queue.chunks == 0 && lost == 0
    }

    /// Bytes of chunks that are being sent or wait to be.
    pub fn bytes(&self) -> u64 {
        self.queue().bytes
    }

    /// A thread that panicked with the lock has left its numbers consistent.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the requests for chunks. It is free again when this goes.
pub struct Asked(Arc<Waiting>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A chunk's place in the queue. It is free again when this goes.
pub struct Enqueued {
    waiting: Arc<Waiting>,
    bytes: u64,
    is_sent: bool,
}

impl Enqueued {
    /// The store has the chunk.
    pub fn sent(mut self) {
        self.is_sent = true;
    }
}

impl Drop for Enqueued {
    fn drop(&mut self) {
        let mut queue = self.waiting.queue();
        queue.chunks -= 1;
        queue.bytes -= self.bytes;
        queue.lost += u64::from(!self.is_sent);
        self.waiting.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let limits = RemoteLimits { waiting_requests: 2, waiting_bytes: 100, ..RemoteLimits::default() };
        let waiting = Waiting::new(&limits);
        let (first, second) = (waiting.ask().expect("a place"), waiting.ask().expect("a place"));
        assert_eq!(waiting.ask().err(), Some(Reason::Full));
        drop(first);
        drop((waiting.ask().expect("a place again"), second));
        let chunk = waiting.enqueue(100).expect("a place");
        assert_eq!(waiting.enqueue(1).err(), Some(Reason::Full));
        assert_eq!(waiting.enqueue(101).err(), Some(Reason::TooLarge));
        assert_eq!(waiting.bytes(), 100);
        assert!(!waiting.flush(Duration::from_millis(10)));
        chunk.sent();
        assert!(waiting.flush(Duration::ZERO) && waiting.bytes() == 0);
    }

    #[test]
    fn a_chunk_that_is_given_up_is_not_sent() {
        let waiting = Waiting::new(&RemoteLimits::default());
        let chunk = waiting.enqueue(1).expect("a place");
        std::thread::scope(|scope| {
            let flushed = scope.spawn(|| waiting.flush(Duration::from_secs(60)));
            // The wait may begin before or after this; a pause lets it be before.
            std::thread::sleep(Duration::from_millis(200));
            drop(chunk);
            assert!(!flushed.join().expect("no panic"));
        });
        assert!(waiting.flush(Duration::ZERO), "nothing waits since");
    }
}
