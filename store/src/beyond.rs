//! The object store beyond a store's folder: the chunks that it has, those in transit from there,
//! and the counters already reported. A chunk from there is put into the folder too, once all of it
//! has been read.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tributary_protocol::{ChunkKey, StoreError, StoreOperation, Tier};

use crate::remote::{Fetch, Operation, Reason, Remote, RemoteCounters, RemoteError, RemoteLimits};
use crate::tally::{Reading, Tally};

/// Longest time for the list of an object store's chunks when a store is opened.
const LIST: Duration = Duration::from_secs(45);

/// Interval of new lists: a large bucket takes a while.
const LOOK: Duration = Duration::from_secs(600);

/// Bytes of chunks that are asked for ahead of use at once: they stay in memory until they are
/// read.
const MOST_COMING_BYTES: u64 = 256 << 20;

/// Maximum number of listed chunks.
const MOST_LISTED: usize = 1_000_000;

/// Longest wait for one chunk. A wait for several ends sooner where none comes.
const FETCH: Duration = Duration::from_secs(10);

/// The object store behind a folder.
#[derive(Debug)]
pub struct Beyond {
    remote: Remote,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Chunks that it has, as far as is known.
    keys: HashSet<ChunkKey>,
    /// Chunks that have been asked for ahead of use, and the most bytes that each may have.
    coming: HashMap<ChunkKey, (Fetch, u64)>,
    /// Time of its last list.
    looked: Option<Instant>,
    /// Counters that have been reported.
    told: RemoteCounters,
    reading: Reading,
}

impl Beyond {
    /// Opens an object store. One that does not answer has nothing, for now.
    ///
    /// # Errors
    /// Returns an error if the URL or a setting of the environment cannot be used.
    pub fn open(url: &str, limits: RemoteLimits) -> Result<Self, RemoteError> {
        let this = Self { remote: Remote::open(url, limits)?, state: Mutex::default() };
        this.look();
        Ok(this)
    }

    /// Learns which chunks are there; those that have come.
    pub fn look(&self) -> Vec<ChunkKey> {
        {
            let mut state = self.state();
            if state.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
                return Vec::new();
            }
            state.looked = Some(Instant::now());
        }
        match self.remote.list(MOST_LISTED, LIST) {
            Ok(entries) => {
                let keys: HashSet<ChunkKey> = entries.iter().map(|entry| entry.key).collect();
                let mut state = self.state();
                let come = keys.difference(&state.keys).copied().collect();
                state.keys.extend(keys);
                come
            }
            Err(reason) => {
                tracing::warn!("the object store does not say which chunks it has: {reason}");
                Vec::new()
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has a chunk, as far as is known, and answers.
    pub fn has(&self, key: &ChunkKey) -> bool {
        self.state().keys.contains(key) && !self.remote.is_down()
    }

    /// Whether it has a chunk, as far as is known, whether it answers or not.
    pub fn knows(&self, key: &ChunkKey) -> bool {
        self.state().keys.contains(key)
    }

    /// The chunks that it has, as far as is known.
    pub fn keys(&self) -> Vec<ChunkKey> {
        self.state().keys.iter().copied().collect()
    }

    /// A chunk of no use is not asked for again.
    pub fn forget(&self, key: &ChunkKey) -> bool {
        self.state().keys.remove(key)
    }

    /// Asks for a chunk ahead of use.
    pub fn ask(&self, key: &ChunkKey, most_bytes: u64) {
        let mut state = self.state();
        let coming_bytes: u64 = state.coming.values().map(|(_, bytes)| bytes).sum();
        if state.keys.contains(key) && coming_bytes + most_bytes <= MOST_COMING_BYTES {
            state.coming.entry(*key).or_insert_with(|| (self.remote.get(key, most_bytes), most_bytes));
        }
    }

    /// Ends the wait for a requested chunk.
    pub fn abandon(&self, key: &ChunkKey) {
        self.state().coming.remove(key);
    }

    /// Waits for a chunk.
    ///
    /// # Errors
    /// Returns the reason why the chunk does not come.
    pub fn fetch(&self, key: &ChunkKey, most_bytes: u64) -> Result<Bytes, StoreError> {
        let begun = Instant::now();
        let fetch = {
            let mut state = self.state();
            state.reading.begin(begun);
            state.coming.remove(key).map(|(fetch, _)| fetch)
        };
        let fetched = fetch.unwrap_or_else(|| self.remote.get(key, most_bytes)).wait(FETCH);
        let read_bytes = fetched.as_ref().map_or(0, |bytes| bytes.len() as u64);
        self.state().reading.end(Instant::now(), read_bytes);
        fetched.map_err(kind)
    }

    /// Leaves a chunk to be sent, unless it is there.
    pub fn send(&self, key: &ChunkKey, bytes: impl FnOnce() -> Bytes) {
        if !self.state().keys.contains(key) && self.remote.put(key, bytes()).is_ok() {
            self.state().keys.insert(*key);
        }
    }

    /// Waits until everything is sent.
    pub fn flush(&self, within: Duration) -> bool {
        self.remote.flush(within)
    }

    /// Bytes that come in a second; nothing where too little has come to tell.
    pub fn read_bytes_per_s(&self) -> Option<f64> {
        self.state().reading.bytes_per_s()
    }

    /// Adds the operations since the last report.
    pub fn report(&self, tally: &mut Tally) {
        let now = self.remote.counters();
        let before = std::mem::replace(&mut self.state().told, now);
        let bytes = [
            (StoreOperation::Read, Operation::Get, now.read_bytes - before.read_bytes),
            (StoreOperation::Write, Operation::Put, now.written_bytes - before.written_bytes),
        ];
        for (operation, asked, bytes) in bytes {
            let (now, before) = (now.of(asked), before.of(asked));
            // One of them carries the bytes; the others have their time alone.
            let count = now.count - before.count;
            for index in 0..count {
                let each = Duration::from_secs_f64(((now.seconds - before.seconds) / count as f64).max(0.0));
                tally.did(Tier::Remote, operation, if index == 0 { bytes } else { 0 }, each);
            }
        }
        for operation in Operation::ALL {
            for reason in Reason::ALL {
                let more = now.of(operation).errors(reason) - before.of(operation).errors(reason);
                (0..more).for_each(|_| tally.failed(Tier::Remote, kind(reason)));
            }
        }
    }
}

/// The kind of a failure, in the words of all stores.
fn kind(reason: Reason) -> StoreError {
    match reason {
        Reason::Missing | Reason::NoBucket => StoreError::Missing,
        Reason::Timeout => StoreError::Slow,
        Reason::Unreachable | Reason::Server => StoreError::Unreadable,
        Reason::Denied => StoreError::Denied,
        Reason::TooLarge => StoreError::Corrupt,
        Reason::Full => StoreError::Busy,
        Reason::Down => StoreError::Down,
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::KeySpace;

    use super::*;

    fn key(number: u32) -> ChunkKey {
        KeySpace::new([0; 32], "f32").chunk(&[], &[number], &[])
    }

    #[test]
    fn what_is_sent_comes_back_and_is_told_of_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let open =
            || Beyond::open(&format!("file://{}", folder.path().display()), RemoteLimits::default()).expect("opened");
        let beyond = open();
        assert!(!beyond.has(&key(1)));
        beyond.send(&key(1), || Bytes::from_static(b"one"));
        beyond.send(&key(1), || Bytes::from_static(b"other"));
        assert!(beyond.flush(Duration::from_secs(10)) && beyond.has(&key(1)));
        let beyond = open();
        assert_eq!(beyond.keys(), [key(1)]);
        beyond.ask(&key(1), 100);
        beyond.ask(&key(1), 100);
        beyond.ask(&key(2), 100);
        assert_eq!(beyond.fetch(&key(1), 100), Ok(Bytes::from_static(b"one")));
        assert_eq!(beyond.fetch(&key(2), 100), Err(StoreError::Missing));
        let mut tally = Tally::default();
        beyond.report(&mut tally);
        let report = tally.take(0);
        assert_eq!(report.errors, [(Tier::Remote, StoreError::Missing, 1)]);
        let bytes: Vec<u64> = report.operations.iter().map(|(_, _, bytes, _)| *bytes).collect();
        assert_eq!(bytes.iter().sum::<u64>(), 3, "{:?}", report.operations);
        beyond.report(&mut tally);
        assert_eq!(tally.take(0).operations, [], "nothing has happened since");
        assert!(beyond.forget(&key(1)) && !beyond.has(&key(1)));
    }
}
