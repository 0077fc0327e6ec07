//! Permits for tokenizing a body and decoding its pictures, and for keeping their pixels. The first
//! two use the ranks' cores, and many times the body's memory: long bodies wait for each other, and
//! short ones wait for no long one.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A body up to this length waits for no longer one, in bytes.
const SHORT: usize = 64 << 10;

/// Short bodies, and long ones, that are read at a time.
const EACH: usize = 4;

/// Bytes of memory that reading a byte of a body takes at most: its JSON, its texts, and the
/// tokenizer's tables.
const WEIGHT: usize = 40;

/// Memory of all long bodies that are being read, in bytes.
const BUDGET: usize = 384 << 20;

/// Memory of all pictures that are being decoded, in bytes.
const PICTURES: usize = 512 << 20;

/// Memory of the pixels of all requests that wait or run, in bytes.
const PIXELS: usize = 1 << 30;

/// The unit of these memories, in bytes.
const STEP: usize = 64 << 10;

/// Places of those who read bodies.
#[derive(Clone)]
pub struct Readers {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    pictures: Arc<Semaphore>,
    pixels: Arc<Semaphore>,
}

impl Default for Readers {
    fn default() -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            short: semaphore(EACH),
            long: semaphore(EACH),
            memory: semaphore(BUDGET / STEP),
            pictures: semaphore(PICTURES / STEP),
            pixels: semaphore(PIXELS / STEP),
        }
    }
}

impl Readers {
    /// Takes the permits for a body of `bytes` bytes, until the result is dropped. A body that
    /// would take more memory than there is takes all of it.
    pub async fn of(&self, bytes: usize) -> Vec<OwnedSemaphorePermit> {
        if bytes <= SHORT {
            return vec![take(&self.short, 1).await];
        }
        let steps = (bytes.saturating_mul(WEIGHT)).div_ceil(STEP).min(BUDGET / STEP);
        vec![take(&self.long, 1).await, take(&self.memory, steps).await]
    }

    /// Takes the permit for decoding pictures one after the other, of which the largest takes
    /// `peak_bytes` bytes, until the result is dropped. A picture that would take more memory than
    /// there is takes all of it.
    pub async fn of_pictures(&self, peak_bytes: u64) -> Option<OwnedSemaphorePermit> {
        of(&self.pictures, PICTURES, peak_bytes).await
    }

    /// Takes the permit for a request whose pictures have `bytes` bytes of resized pixels, until
    /// the result is dropped: after the request's end. One that would take more than there is takes
    /// all of it.
    pub async fn of_pixels(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        of(&self.pixels, PIXELS, bytes).await
    }
}

/// Takes `bytes` bytes of a memory of `most`, at most all of it; nothing for none.
async fn of(memory: &Arc<Semaphore>, most: usize, bytes: u64) -> Option<OwnedSemaphorePermit> {
    let steps = usize::try_from(bytes.div_ceil(STEP as u64)).unwrap_or(usize::MAX).min(most / STEP);
    if steps == 0 { None } else { Some(take(memory, steps).await) }
}

async fn take(semaphore: &Arc<Semaphore>, count: usize) -> OwnedSemaphorePermit {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    Arc::clone(semaphore).acquire_many_owned(count).await.expect("it is never closed")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn long_bodies_wait_for_memory_and_short_ones_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let readers = Readers::default();
            let waits = async |bytes| tokio::time::timeout(Duration::from_millis(20), readers.of(bytes)).await.is_err();
            let first = readers.of(8 << 20).await;
            assert!(waits(8 << 20).await, "two of these are more than there is");
            assert!(!waits(1 << 20).await && !waits(1000).await);
            drop(first);
            assert!(!waits(1 << 30).await, "what is longer than all has all");
            let _short = [readers.of(1).await, readers.of(1).await, readers.of(1).await, readers.of(1).await];
            assert!(waits(1).await && !waits(1 << 20).await);
        });
    }
    #[test]
    fn pictures_wait_for_the_memory_of_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let readers = Readers::default();
            let waits = async |bytes| {
                tokio::time::timeout(Duration::from_millis(20), readers.of_pictures(bytes)).await.is_err()
            };
            let first = readers.of_pictures(300 << 20).await;
            assert!(waits(300 << 20).await, "two of these are more than there is");
            assert!(!waits(200 << 20).await && !waits(0).await);
            drop(first);
            assert!(!waits(u64::MAX).await, "what is larger than all has all");
            let _kept = readers.of_pixels(700 << 20).await;
            let waits =
                async |bytes| tokio::time::timeout(Duration::from_millis(20), readers.of_pixels(bytes)).await.is_err();
            assert!(waits(400 << 20).await && !waits(300 << 20).await, "pixels of requests have a memory of their own");
        });
    }
}
