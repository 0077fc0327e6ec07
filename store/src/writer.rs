//! The thread that writes chunks, behind the first token and after all else: it yields to every thread that computes. Room is made,
//! use is noted and the folder is read anew here too, so that no rank waits for a disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tributary_protocol::{ChunkKey, StoreError, StoreOperation, Tier};

use crate::chunk_file::{LayerBytes, encode};
use crate::damage::kind_of;
use crate::folder::Entry;
use crate::identity::{Identity, Shape};
use crate::shared::Shared;

/// How often the folder is read anew while chunks are written: others may write and remove there.
const LOOK: Duration = Duration::from_secs(30);

/// The least and the longest pause after a failure of the disk.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The kindest that a thread can be to others.
const NICEST: i32 = 19;

/// Bytes of a layer: keys, values.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A chunk that is to be written.
pub struct Writing {
    /// What it is.
    pub identity: Identity,
    /// How many numbers it has.
    pub shape: Shape,
    /// Gives a layer's keys and values; asked on the writer's thread.
    pub layer: Box<dyn Fn(usize) -> Result<Pair, String> + Send>,
}

/// What the writer is told.
pub enum Work {
    /// Write a chunk.
    Write(Box<Writing>),
    /// Put a chunk's file from the object store into the folder.
    Adopt(ChunkKey, Bytes),
    /// Note that a chunk has been used.
    Touch(ChunkKey),
    /// Say that everything before this has been done.
    Flush(std::sync::mpsc::SyncSender<()>),
}

/// The writer's own state.
pub struct Writer {
    shared: Arc<Shared>,
    looked: Instant,
    /// After failures in a row: how long to pause, and until when.
    pause: Duration,
    until: Option<Instant>,
}

impl Writer {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, looked: Instant::now(), pause: PAUSES.0, until: None }
    }

    /// Does what it is told until nobody is left to tell it.
    pub fn run(mut self, work: &Receiver<Work>) {
        // Where the system does not let it be kind it is not.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICEST);
        while let Ok(work) = work.recv() {
            match work {
                Work::Write(writing) => {
                    let bytes = writing.shape.bytes();
                    self.write(&writing);
                    drop(writing);
                    self.shared.wrote(bytes);
                }
                Work::Adopt(key, bytes) => {
                    self.guard(|this| this.put(key, &bytes));
                    self.shared.wrote(bytes.len() as u64);
                }
                // A chunk that somebody else has removed needs no note.
                Work::Touch(key) => drop(self.shared.folder.touch(&key)),
                // Whether anybody waits does not matter.
                Work::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn write(&mut self, writing: &Writing) {
        self.guard(|this| this.try_write(writing));
    }

    /// Does what the disk may refuse; behind a failure nothing for a while.
    fn guard(&mut self, work: impl FnOnce(&mut Self) -> io::Result<()>) {
        if self.until.is_some_and(|until| Instant::now() < until) {
            return self.shared.failed(Tier::Disk, StoreError::Down);
        }
        match work(self) {
            Ok(()) => (self.pause, self.until) = (PAUSES.0, None),
            Err(error) => {
                tracing::warn!("a chunk was not stored in {}: {error}", self.shared.folder.path().display());
                self.shared.failed(Tier::Disk, kind_of(&error));
                self.until = Some(Instant::now() + self.pause);
                self.pause = (self.pause * 2).min(PAUSES.1);
            }
        }
    }

    fn try_write(&mut self, writing: &Writing) -> io::Result<()> {
        let (key, shared) = (writing.identity.key, Arc::clone(&self.shared));
        if self.looked.elapsed() > LOOK {
            self.looked = Instant::now();
            if let Err(error) = shared.look() {
                tracing::warn!("what others have stored in {} is not known: {error}", shared.folder.path().display());
            }
        }
        let path = shared.folder.path_of(&key);
        if let Ok(metadata) = path.metadata() {
            // Another rank or another job has been quicker.
            shared.stored(Entry { key, bytes: metadata.len(), used: SystemTime::now() });
            return Ok(());
        }
        let layers = (0..writing.shape.layers).map(&writing.layer).collect::<Result<Vec<Pair>, String>>();
        let layers = layers.map_err(io::Error::other)?;
        let layers: Vec<LayerBytes<'_>> = layers.iter().map(|(keys, values)| LayerBytes { keys, values }).collect();
        let bytes = Bytes::from(encode(&writing.identity, &writing.shape, &layers, shared.secret()));
        if let Some(beyond) = &shared.beyond {
            beyond.send(&key, bytes.clone());
        }
        self.put(key, &bytes)
    }

    /// Puts a chunk's file into the folder, if there is room.
    fn put(&self, key: ChunkKey, bytes: &[u8]) -> io::Result<()> {
        let (begun, count, shared) = (Instant::now(), bytes.len() as u64, &self.shared);
        // Somebody may have removed it.
        shared.folder.make()?;
        if !self.make_room(count)? {
            shared.failed(Tier::Disk, StoreError::Full);
            return Ok(());
        }
        shared.folder.write(&key, bytes)?;
        shared.did(Tier::Disk, StoreOperation::Write, count, begun.elapsed());
        shared.stored(Entry { key, bytes: count, used: SystemTime::now() });
        Ok(())
    }

    /// Removes chunks that were used least recently until so many bytes fit; whether they do.
    fn make_room(&self, bytes: u64) -> io::Result<bool> {
        let limits = self.shared.limits();
        if limits.most_bytes.is_some_and(|most| bytes > most) {
            return Ok(false);
        }
        let used_bytes = self.shared.used_bytes();
        let above = limits.most_bytes.map_or(0, |most| (used_bytes + bytes).saturating_sub(most));
        let short = limits.reserve_bytes.saturating_add(bytes).saturating_sub(self.shared.folder.free_bytes()?);
        // Where even everything would not suffice nothing is gained by removing it. What is removed counts as free: some disks say
        // so only later.
        if short > used_bytes {
            return Ok(false);
        }
        self.shared.evict(above.max(short))?;
        Ok(true)
    }
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the chunk store {}: {cause}", path.display())]
pub struct OpenError {
    /// The folder.
    pub path: PathBuf,
    /// The system's words.
    pub cause: io::Error,
}
