//! The thread that writes chunks, after the first token. It yields to every computing thread, and
//! pauses while a rank is before its first token. It also makes room, notes uses and reads the
//! folder anew, so that no rank waits for a disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tributary_protocol::{ChunkKey, StoreError, StoreOperation, Tier};

use crate::chunk_file::Draft;
use crate::damage::kind_of;
use crate::folder::Entry;
use crate::identity::{Identity, Shape};
use crate::shared::Shared;

/// Interval at which the folder is read anew while chunks are written: other processes may change
/// it.
const LOOK: Duration = Duration::from_secs(30);

/// The least and the longest pause after a failure of the disk.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The kindest that a thread can be to others.
const NICEST: i32 = 19;

/// Longest pause for one chunk.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most bytes of memory that it keeps for the next chunk.
const MOST_SPARE_BYTES: usize = 64 << 20;

/// Appends the bytes of a layer: the numbers of its rows where the shape says that they are there,
/// its keys and then its values; or says why there are none.
pub type Append = dyn Fn(usize, &mut Vec<u8>) -> Result<(), String> + Send;

/// A chunk that is to be written.
pub struct Writing {
    /// Identity of the chunk.
    pub identity: Identity,
    /// Shape of its numbers.
    pub shape: Shape,
    /// Appends a layer's bytes; asked on the writer's thread.
    pub layer: Box<Append>,
}

/// Orders to the writer.
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
    /// End of the pause for this chunk.
    still_until: Instant,
    /// Memory of the last chunk, for the next.
    spare: Vec<u8>,
}

impl Writer {
    pub fn new(shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        Self { shared, looked: now, pause: PAUSES.0, until: None, still_until: now, spare: Vec::new() }
    }

    /// Handles orders until all senders are gone.
    pub fn run(mut self, work: &Receiver<Work>) {
        // If the system refuses the low priority, it keeps its own.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICEST);
        while let Ok(work) = work.recv() {
            self.still_until = Instant::now() + PATIENCE;
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
                // A chunk that another process has removed needs no note.
                Work::Touch(key) => drop(self.shared.folder.touch(&key)),
                // The receiver may be gone.
                Work::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn write(&mut self, writing: &Writing) {
        self.guard(|this| this.try_write(writing));
    }

    /// Does work that the disk may refuse; after a failure, none for a while.
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

    /// Waits while ranks are before their first token, as long as it may.
    fn stand_still(&self) {
        if !self.shared.is_behind() {
            self.shared.ranks.wait(self.still_until);
        }
    }

    fn try_write(&mut self, writing: &Writing) -> io::Result<()> {
        let (key, shared) = (writing.identity.key, Arc::clone(&self.shared));
        if self.looked.elapsed() > LOOK {
            self.stand_still();
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
        let mut draft = Draft::new(&writing.identity, &writing.shape, std::mem::take(&mut self.spare));
        for layer in 0..writing.shape.layers {
            self.stand_still();
            draft.layer(|bytes| (writing.layer)(layer, bytes)).map_err(io::Error::other)?;
        }
        let bytes = draft.finish(shared.secret());
        if let Some(beyond) = &shared.beyond {
            beyond.send(&key, || Bytes::copy_from_slice(&bytes));
        }
        let put = self.put(key, &bytes);
        if bytes.capacity() <= MOST_SPARE_BYTES {
            self.spare = bytes;
        }
        put
    }

    /// Puts a chunk's file into the folder, if there is room.
    fn put(&self, key: ChunkKey, bytes: &[u8]) -> io::Result<()> {
        self.stand_still();
        let (begun, count, shared) = (Instant::now(), bytes.len() as u64, &self.shared);
        // Another process may have removed it.
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

    /// Removes the least recently used chunks until `bytes` bytes fit; returns whether they do.
    fn make_room(&self, bytes: u64) -> io::Result<bool> {
        let limits = self.shared.limits();
        if limits.most_bytes.is_some_and(|most| bytes > most) {
            return Ok(false);
        }
        let used_bytes = self.shared.used_bytes();
        let above = limits.most_bytes.map_or(0, |most| (used_bytes + bytes).saturating_sub(most));
        let short = limits.reserve_bytes.saturating_add(bytes).saturating_sub(self.shared.folder.free_bytes()?);
        // Where even the removal of all chunks would not suffice, none is removed. Removed bytes
        // count as free: some disks report them only later.
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
