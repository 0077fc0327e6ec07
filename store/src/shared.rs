//! State that the threads of a store share: its folder, its index, and its tally.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tributary_protocol::{ChunkKey, StoreError, StoreOperation, Tier};

use crate::beyond::Beyond;
use crate::damage::Damage;
use crate::folder::{Entry, Folder};
use crate::index::Index;
use crate::remote::RemoteLimits;
use crate::seal::Secret;
use crate::standing_still::Ranks;
use crate::tally::Tally;

/// Bytes of chunks that may wait to be written; they stay in memory until then.
const MOST_WAITING_BYTES: u64 = 1 << 30;

/// Settings of a store.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// Whether it is meant that others may write to it.
    pub is_shared: bool,
    /// The most bytes of files; no limit where absent.
    pub most_bytes: Option<u64>,
    /// Bytes of the disk that stay free.
    pub reserve_bytes: u64,
    /// Shared secret of all who may write trusted chunks.
    pub secret: Option<Secret>,
    /// The URL of an object store behind the folder, such as `s3://bucket/prefix`.
    pub remote: Option<String>,
}

/// State that the threads of a store share.
#[derive(Debug)]
pub struct Shared {
    /// The folder itself.
    pub folder: Folder,
    settings: Settings,
    /// The object store behind the folder.
    pub beyond: Option<Beyond>,
    index: Mutex<Index>,
    tally: Mutex<Tally>,
    waiting_bytes: AtomicU64,
    /// The ranks that are not to be disturbed.
    pub ranks: Arc<Ranks>,
}

impl Shared {
    /// Opens the folder and reads which chunks it has.
    pub fn open(settings: Settings) -> io::Result<Self> {
        let folder = Folder::open(&settings.folder, settings.is_shared)?;
        let mut index = Index::default();
        index.replace(folder.entries()?);
        let limits = RemoteLimits { is_shared: settings.is_shared, ..RemoteLimits::default() };
        let beyond = settings.remote.as_deref().map(|url| Beyond::open(url, limits)).transpose();
        let beyond = beyond.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (index, tally, waiting_bytes) = (Mutex::new(index), Mutex::default(), AtomicU64::new(0));
        Ok(Self { folder, settings, beyond, index, tally, waiting_bytes, ranks: Arc::default() })
    }

    /// Whether the folder or the object store has a chunk, as far as is known.
    pub fn has(&self, key: &ChunkKey) -> bool {
        self.has_here(key) || self.beyond.as_ref().is_some_and(|beyond| beyond.has(key))
    }

    /// Whether the folder has a chunk, as far as is known: no disk is asked.
    pub fn has_here(&self, key: &ChunkKey) -> bool {
        self.index().has(key)
    }

    /// Whether a chunk is in any tier, as far as known, even if it is not available now.
    fn knows(&self, key: &ChunkKey) -> bool {
        self.has_here(key) || self.beyond.as_ref().is_some_and(|beyond| beyond.knows(key))
    }

    /// A chunk that another process has written has been found.
    pub fn found(&self, key: &ChunkKey) {
        if !self.has_here(key)
            && let Ok(metadata) = self.folder.path_of(key).metadata()
        {
            self.stored(Entry { key: *key, bytes: metadata.len(), used: SystemTime::now() });
        }
    }

    /// Index of the folder.
    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tally of its operations.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Key of seals.
    pub fn secret(&self) -> Option<&Secret> {
        self.settings.secret.as_ref()
    }

    /// Settings of the store.
    pub fn limits(&self) -> &Settings {
        &self.settings
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.index().used_bytes()
    }

    /// Queues `bytes` bytes to be written, and returns whether there is room. A chunk larger than
    /// the room waits alone.
    pub fn waits(&self, bytes: u64) -> bool {
        let waiting = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        waiting == 0 || waiting + bytes <= MOST_WAITING_BYTES
    }

    /// Whether the queue is so full that the next chunk may find no room.
    pub fn is_behind(&self) -> bool {
        self.waiting_bytes.load(Ordering::Relaxed) > MOST_WAITING_BYTES / 2
    }

    /// Takes `bytes` bytes out of the queue.
    pub fn wrote(&self, bytes: u64) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An operation has succeeded.
    pub fn did(&self, tier: Tier, operation: StoreOperation, bytes: u64, took: Duration) {
        self.tally().did(tier, operation, bytes, took);
    }

    /// An operation has failed.
    pub fn failed(&self, tier: Tier, error: StoreError) {
        self.tally().failed(tier, error);
    }

    /// A chunk is there.
    pub fn stored(&self, entry: Entry) {
        self.index().insert(entry);
        self.tally().stored([entry.key]);
    }

    /// Handles a chunk of no use: counts it, forgets it, and moves the file aside if the file is to
    /// blame. A chunk in the object store stays there until another one replaces it.
    pub fn spoilt(&self, key: &ChunkKey, tier: Tier, damage: &Damage) {
        tracing::warn!(%key, tier = tier.name(), "a stored chunk is of no use: {damage}");
        self.failed(tier, damage.kind());
        if tier == Tier::Remote {
            if self.beyond.as_ref().is_some_and(|beyond| beyond.forget(key)) && !self.index().has(key) {
                self.tally().gone([*key]);
            }
            return;
        }
        if damage.is_of_the_file() {
            // If it stays it is found again, and is of no use then either.
            let _ = self.folder.move_aside(key);
        }
        if self.index().remove(key) && !self.knows(key) {
            self.tally().gone([*key]);
        }
    }

    /// Removes the least recently used chunks until `free_bytes` bytes are free; returns the number
    /// of removed chunks.
    pub fn evict(&self, free_bytes: u64) -> io::Result<usize> {
        let oldest = self.index().oldest(free_bytes);
        for key in &oldest {
            self.folder.remove(key)?;
            self.index().remove(key);
            let is_gone = !self.knows(key);
            self.tally().evicted(*key, is_gone);
        }
        Ok(oldest.len())
    }

    /// Learns the changes of other processes.
    pub fn look(&self) -> io::Result<()> {
        let entries = self.folder.entries()?;
        let (come, gone) = self.index().replace(entries);
        let gone: Vec<ChunkKey> = gone.into_iter().filter(|key| !self.knows(key)).collect();
        let far = self.beyond.as_ref().map(Beyond::look).unwrap_or_default();
        let mut tally = self.tally();
        tally.stored(come.into_iter().chain(far));
        tally.gone(gone);
        Ok(())
    }
}
