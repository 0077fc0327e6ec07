//! The store of a process: a folder of chunks, what is known of it, the thread that writes and those that read. The ranks of a process
//! share one; processes, hosts and jobs may share the folder.

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tributary_protocol::{ChunkKey, StoreError, StoreOperation, StoreReport, Tier};

use crate::chunk_file::ChunkFile;
use crate::damage::Damage;
use crate::identity::{Identity, Shape};
use crate::readers::{Readers, Steps};
use crate::shared::{Settings, Shared};
use crate::writer::{OpenError, Work, Writer, Writing};

/// Threads that read.
const READERS: usize = 2;

/// Chunks and notes that may wait.
const MOST_WAITING: usize = 4096;

/// How long a store that was too slow is left alone.
const REST: Duration = Duration::from_secs(10);

/// How long what waits to be written is waited for when a store is closed.
const LAST_WRITES: Duration = Duration::from_secs(30);

/// A store of chunks.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    work: SyncSender<Work>,
    readers: Readers,
    /// When somebody last waited for it in vain.
    slow_at: Mutex<Option<Instant>>,
}

impl Store {
    /// Opens a folder and reads which chunks it has.
    ///
    /// # Errors
    /// The system's; a folder that others may write to, unless that is meant.
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let path = settings.folder.clone();
        Self::start(settings).map_err(|cause| OpenError { path, cause })
    }

    fn start(settings: Settings) -> io::Result<Self> {
        let shared = Arc::new(Shared::open(settings)?);
        let (work, told) = sync_channel(MOST_WAITING);
        let writer = Writer::new(Arc::clone(&shared));
        std::thread::Builder::new().name("chunk-write".to_owned()).spawn(move || writer.run(&told))?;
        Ok(Self { shared, work, readers: Readers::start(READERS)?, slow_at: Mutex::default() })
    }

    /// What all who read the same folder call it. Where that cannot be written down, a name that only this process has.
    pub fn name(&self) -> String {
        let own = || format!("{} of process {}", self.shared.folder.path().display(), std::process::id());
        self.shared.folder.name().unwrap_or_else(|_| own())
    }

    /// The chunks that it holds, as far as this process knows, in no order.
    pub fn keys(&self) -> Vec<ChunkKey> {
        self.shared.index().keys()
    }

    /// Whether it holds a chunk, as far as this process knows.
    pub fn has(&self, key: &ChunkKey) -> bool {
        self.shared.index().has(key)
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.shared.used_bytes()
    }

    /// A chunk, whose layers are then [read](StoredChunk::read_layer). What is of no use is counted and moved aside.
    ///
    /// # Errors
    /// What makes it of no use.
    pub fn find(&self, identity: &Identity, shape: &Shape) -> Result<StoredChunk, Damage> {
        let (key, shared) = (identity.key, &self.shared);
        fail::fail_point!("store::open");
        let file = ChunkFile::open(&shared.folder.path_of(&key), identity, shape, shared.secret());
        let file = file.inspect_err(|damage| shared.spoilt(&key, damage))?;
        shared.index().touch(&key);
        // One that finds no place is used all the same.
        let _ = self.work.try_send(Work::Touch(key));
        Ok(StoredChunk { shared: Arc::clone(shared), key, file, bytes: 2 * shape.tensor_bytes() as u64 })
    }

    /// Has chunks read by the store's own threads.
    pub fn read(&self, steps: Arc<dyn Steps>) {
        self.readers.read(steps);
    }

    /// Hands a chunk over to be written, unless it is there; whether it will be. Nobody waits: where too many wait already it is not
    /// written.
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
                Ok(()) => return told.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok(),
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

    /// Whether it was so slow lately that nobody should wait for it.
    pub fn rests(&self) -> bool {
        let slow_at = self.slow_at.lock().unwrap_or_else(PoisonError::into_inner);
        slow_at.is_some_and(|slow_at| slow_at.elapsed() < REST)
    }

    /// Bytes that are read in a second, all threads together; nothing where too little has been read to tell.
    pub fn read_bytes_per_s(&self) -> Option<f64> {
        self.shared.tally().reading.bytes_per_s()
    }

    /// What happened since this was asked last.
    pub fn report(&self) -> StoreReport {
        let used_bytes = self.used_bytes();
        self.shared.tally().take(used_bytes)
    }

    /// Has the system forget what it keeps of the files in memory, so that the next reader reads from the disk. For measurements.
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

/// A stored chunk that says what was expected of it.
#[derive(Debug)]
pub struct StoredChunk {
    shared: Arc<Shared>,
    key: ChunkKey,
    file: ChunkFile,
    /// Bytes of a layer.
    bytes: u64,
}

impl StoredChunk {
    /// Reads a layer into these buffers and verifies it; several threads may read several layers.
    ///
    /// # Errors
    /// The layer is not what was written, or cannot be read. It has been counted, and the file moved aside.
    ///
    /// # Panics
    /// If there is no such layer, or a buffer is of another length: only a bug can do that.
    pub fn read_layer(&self, layer: usize, keys: &mut [u8], values: &mut [u8]) -> Result<(), Damage> {
        let begun = Instant::now();
        self.shared.tally().reading.begin(begun);
        fail::fail_point!("store::read");
        let read = self.file.read_layer(layer, keys, values);
        let (now, bytes) = (Instant::now(), if read.is_ok() { self.bytes } else { 0 });
        self.shared.tally().reading.end(now, bytes);
        read.inspect_err(|damage| self.shared.spoilt(&self.key, damage))
    }

    /// Notes that all of it has been read, in this time.
    pub fn has_been_read(&self, layers: usize, took: Duration) {
        self.shared.did(Tier::Disk, StoreOperation::Read, self.bytes * layers as u64, took);
    }
}

#[cfg(test)]
mod tests;
