//! The store of a process: a folder of chunks, its index, the thread that writes and those that
//! read. The ranks of a process share one; processes, hosts and jobs may share the folder.

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tributary_protocol::{ChunkKey, StoreError, StoreOperation, StoreReport, Tier};

use crate::beyond::Beyond;
use crate::chunk_file::ChunkFile;
use crate::damage::Damage;
use crate::identity::{Identity, Shape};
use crate::readers::{Readers, Steps};
use crate::shared::{Settings, Shared};
use crate::standing_still::Computing;
use crate::writer::{OpenError, Work, Writer, Writing};

/// Threads that read: a quarter of the cores, which hash their data, but neither fewer nor more
/// than these.
const READERS: (usize, usize) = (2, 8);

/// Chunks and notes that may wait.
const MOST_WAITING: usize = 4096;

/// Shortest time between two notes of a chunk's use.
const NOTED: Duration = Duration::from_secs(60);

/// Rest of a store that was too slow.
const REST: Duration = Duration::from_secs(10);

/// Longest wait for queued writes when a store is closed.
const LAST_WRITES: Duration = Duration::from_secs(30);

/// Number of reading threads.
fn readers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 4).clamp(READERS.0, READERS.1)
}

/// The most bytes that the file of such a chunk may have: its keys and values, its header and its
/// ids.
fn most_bytes(shape: &Shape) -> u64 {
    shape.bytes() + 8 * shape.rows as u64 + (1 << 20)
}

/// A store of chunks.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    work: SyncSender<Work>,
    readers: Readers,
    /// Time of the last vain wait for it.
    slow_at: Mutex<Option<Instant>>,
}

impl Store {
    /// Opens a folder and reads which chunks it has.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails, or if others may write to
    /// the folder, unless that is allowed.
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let path = settings.folder.clone();
        Self::start(settings).map_err(|cause| OpenError { path, cause })
    }

    fn start(settings: Settings) -> io::Result<Self> {
        let shared = Arc::new(Shared::open(settings)?);
        let (work, told) = sync_channel(MOST_WAITING);
        let writer = Writer::new(Arc::clone(&shared));
        std::thread::Builder::new().name("chunk-write".to_owned()).spawn(move || writer.run(&told))?;
        Ok(Self { shared, work, readers: Readers::start(readers())?, slow_at: Mutex::default() })
    }

    /// Name of the folder that all its readers share. Where it cannot be written down, a name that
    /// only this process has.
    pub fn name(&self) -> String {
        let own = || format!("{} of process {}", self.shared.folder.path().display(), std::process::id());
        self.shared.folder.name().unwrap_or_else(|_| own())
    }

    /// The chunks that it holds, as far as this process knows, ascending.
    pub fn keys(&self) -> Vec<ChunkKey> {
        let mut keys = self.shared.index().keys();
        keys.extend(self.shared.beyond.iter().flat_map(Beyond::keys));
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Whether it holds a chunk, as far as this process knows.
    pub fn has(&self, key: &ChunkKey) -> bool {
        self.shared.has(key)
    }

    /// Whether the folder itself has a chunk.
    pub fn has_here(&self, key: &ChunkKey) -> bool {
        self.shared.has_here(key)
    }

    /// Asks the object store for a chunk of this shape ahead of use, where the folder does not have
    /// it.
    pub fn ask(&self, key: &ChunkKey, shape: &Shape) {
        if let (Some(beyond), false) = (&self.shared.beyond, self.has_here(key)) {
            beyond.ask(key, most_bytes(shape));
        }
    }

    /// Ends the wait for a requested chunk.
    pub fn abandon(&self, key: &ChunkKey) {
        if let Some(beyond) = &self.shared.beyond {
            beyond.abandon(key);
        }
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.shared.used_bytes()
    }

    /// Finds a chunk, whose layers are then [read](StoredChunk::read_layer). A chunk of no use is
    /// counted and moved aside.
    ///
    /// # Errors
    /// Returns the reason why the file is of no use.
    pub fn find(&self, identity: &Identity, shape: &Shape) -> Result<StoredChunk, Damage> {
        let (key, shared) = (identity.key, &self.shared);
        fail::fail_point!("store::open");
        let file = ChunkFile::open(&shared.folder.path_of(&key), identity, shape, shared.secret());
        if let (Err(Damage::Missing), Some(beyond)) = (&file, &shared.beyond)
            && beyond.has(&key)
        {
            return self.fetch(beyond, identity, shape);
        }
        let file = file.inspect_err(|damage| shared.spoilt(&key, Tier::Disk, damage))?;
        shared.found(&key);
        shared.index().touch(&key);
        // A chunk that finds no place is used anyway.
        let _ = self.work.try_send(Work::Touch(key));
        Ok(self.stored(key, file, shape, None))
    }

    /// A chunk from the object store.
    fn fetch(&self, beyond: &Beyond, identity: &Identity, shape: &Shape) -> Result<StoredChunk, Damage> {
        let key = identity.key;
        let bytes = beyond.fetch(&key, most_bytes(shape)).map_err(|error| {
            if error == StoreError::Missing {
                beyond.forget(&key);
            }
            // The failure has been counted there.
            Damage::Unreadable(io::Error::other(error.name()))
        })?;
        let file = ChunkFile::of_bytes(bytes.clone(), identity, shape, self.shared.secret());
        let file = file.inspect_err(|damage| self.shared.spoilt(&key, Tier::Remote, damage))?;
        Ok(self.stored(key, file, shape, Some(bytes)))
    }

    fn stored(&self, key: ChunkKey, file: ChunkFile, shape: &Shape, fetched: Option<Bytes>) -> StoredChunk {
        let (shared, work) = (Arc::clone(&self.shared), self.work.clone());
        StoredChunk { shared, work, key, file, bytes: shape.layer_bytes() as u64, fetched }
    }

    /// Notes that a chunk is in use, where that has not been noted for a minute: a chunk in memory
    /// is not read.
    pub fn touch(&self, key: &ChunkKey) {
        if self.shared.index().touch_after(key, NOTED) {
            let _ = self.work.try_send(Work::Touch(*key));
        }
    }

    /// Has chunks read by the store's own threads.
    pub fn read(&self, steps: Arc<dyn Steps>) {
        self.readers.read(steps);
    }

    /// Marks a rank as before its first token while the returned value lives: nothing is written
    /// meanwhile, unless that takes long or the queue is too full.
    pub fn computing(&self) -> Computing {
        Computing::new(&self.shared.ranks)
    }

    /// Hands a chunk over to be written, unless it is there; returns whether it will be. The caller
    /// never waits: where the queue is full the chunk is not written.
    pub fn write(&self, writing: Writing) -> bool {
        let (key, bytes, shared) = (writing.identity.key, writing.shape.bytes(), &self.shared);
        if shared.index().has(&key) {
            let _ = self.work.try_send(Work::Touch(key));
            return false;
        }
        let sent = shared.waits(bytes) && self.work.try_send(Work::Write(Box::new(writing))).is_ok();
        if !sent {
            shared.wrote(bytes);
            shared.failed(Tier::Disk, StoreError::Busy);
        }
        sent
    }

    /// Waits until everything that was handed over is written; whether it was, in time.
    pub fn flush(&self, within: Duration) -> bool {
        let (tell, told) = sync_channel(1);
        let until = Instant::now() + within;
        let mut flush = Work::Flush(tell);
        loop {
            match self.work.try_send(flush) {
                Ok(()) => {
                    let left = || until.saturating_duration_since(Instant::now());
                    let is_here = told.recv_timeout(left()).is_ok();
                    return is_here && self.shared.beyond.as_ref().is_none_or(|beyond| beyond.flush(left()));
                }
                Err(TrySendError::Full(again)) if Instant::now() < until => flush = again,
                Err(_) => return false,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Notes that reading a chunk took too long: the store is left alone for a while.
    pub fn was_slow(&self) {
        self.shared.failed(Tier::Disk, StoreError::Slow);
        *self.slow_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether it was too slow lately to be worth a wait.
    pub fn rests(&self) -> bool {
        let slow_at = self.slow_at.lock().unwrap_or_else(PoisonError::into_inner);
        slow_at.is_some_and(|slow_at| slow_at.elapsed() < REST)
    }

    /// Expected seconds for reading `bytes` bytes of a chunk, by earlier reads from its tier; none
    /// where too little was read.
    pub fn expected_s(&self, key: &ChunkKey, bytes: u64) -> Option<f64> {
        let bytes_per_s = match &self.shared.beyond {
            Some(beyond) if !self.has_here(key) => beyond.read_bytes_per_s(),
            _ => self.shared.tally().reading.bytes_per_s(),
        };
        bytes_per_s.map(|bytes_per_s| bytes as f64 / bytes_per_s)
    }

    /// Report of operations since the last report.
    pub fn report(&self) -> StoreReport {
        let used_bytes = self.used_bytes();
        let mut tally = self.shared.tally();
        if let Some(beyond) = &self.shared.beyond {
            beyond.report(&mut tally);
        }
        tally.take(used_bytes)
    }

    /// Drops the files from the system's page cache, so that the next reader reads from the disk.
    /// For measurements.
    pub fn drop_pages(&self) {
        for key in self.keys() {
            // A chunk that has gone has no pages.
            let _ = self.shared.folder.drop_pages(&key);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.flush(LAST_WRITES);
    }
}

/// A stored chunk with the expected header.
#[derive(Debug)]
pub struct StoredChunk {
    shared: Arc<Shared>,
    work: SyncSender<Work>,
    key: ChunkKey,
    file: ChunkFile,
    /// Bytes of a layer.
    bytes: u64,
    /// The whole file, where it came from the object store.
    fetched: Option<Bytes>,
}

impl StoredChunk {
    /// Reads a layer into these buffers and verifies it; several threads may read several layers.
    ///
    /// # Errors
    /// Returns an error if the layer differs from what was written, or cannot be read. The failure
    /// has been counted, and the file moved aside.
    ///
    /// # Panics
    /// If there is no such layer, or a buffer is of another length: only a bug can do that.
    pub fn read_layer(&self, layer: usize, keys: &mut [u8], values: &mut [u8]) -> Result<(), Damage> {
        self.read_parts(layer, [&mut [], keys, values])
    }

    /// As [`read_layer`](Self::read_layer), with the numbers of the layer's rows before keys and
    /// values, where the shape says that they are there.
    ///
    /// # Errors
    /// Fails as [`read_layer`](Self::read_layer) does.
    ///
    /// # Panics
    /// As [`read_layer`](Self::read_layer).
    pub fn read_parts(&self, layer: usize, parts: [&mut [u8]; 3]) -> Result<(), Damage> {
        fail::fail_point!("store::read");
        if self.fetched.is_some() {
            let read = self.file.read_parts(layer, parts);
            return read.inspect_err(|damage| self.shared.spoilt(&self.key, Tier::Remote, damage));
        }
        let begun = Instant::now();
        self.shared.tally().reading.begin(begun);
        let read = self.file.read_parts(layer, parts);
        let (now, bytes) = (Instant::now(), if read.is_ok() { self.bytes } else { 0 });
        self.shared.tally().reading.end(now, bytes);
        read.inspect_err(|damage| self.shared.spoilt(&self.key, Tier::Disk, damage))
    }

    /// Notes that all of it has been read, in the time `took`. A chunk from the object store is put
    /// into the folder.
    pub fn has_been_read(&self, layers: usize, took: Duration) {
        let Some(bytes) = &self.fetched else {
            return self.shared.did(Tier::Disk, StoreOperation::Read, self.bytes * layers as u64, took);
        };
        let (count, shared) = (bytes.len() as u64, &self.shared);
        let adopted = shared.waits(count) && self.work.try_send(Work::Adopt(self.key, bytes.clone())).is_ok();
        if !adopted {
            shared.wrote(count);
        }
    }
}

#[cfg(test)]
mod tests;
