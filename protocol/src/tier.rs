//! Where chunks lie that were prefilled before, and what the places beyond a rank's memory have to tell.

use crate::ChunkKey;

/// A place where chunks are kept, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Tier {
    /// A rank's memory: its device's, or the host's.
    Memory,
    /// A folder on a disk, of this host or shared.
    Disk,
    /// An object store.
    Remote,
}

impl Tier {
    /// All of them.
    pub const ALL: [Tier; 3] = [Tier::Memory, Tier::Disk, Tier::Remote];

    /// As it is written in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Memory => "memory",
            Tier::Disk => "disk",
            Tier::Remote => "remote",
        }
    }
}

/// What is done with a chunk in a place beyond a rank's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum StoreOperation {
    /// Its keys and values are read.
    Read,
    /// It is written whole.
    Write,
}

impl StoreOperation {
    /// All of them.
    pub const ALL: [StoreOperation; 2] = [StoreOperation::Read, StoreOperation::Write];

    /// As it is written in metrics.
    pub fn name(self) -> &'static str {
        match self {
            StoreOperation::Read => "read",
            StoreOperation::Write => "write",
        }
    }
}

/// Why a chunk in a store was of no use, or was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum StoreError {
    /// It was said to be there, and is not.
    Missing,
    /// It is not as it was written.
    Corrupt,
    /// It is of another model, type of numbers, prefix, method or version.
    Incompatible,
    /// The system does not give it out, or does not take it.
    Unreadable,
    /// Nobody may read it, or write it.
    Denied,
    /// There is no room for it.
    Full,
    /// It took too long.
    Slow,
    /// Too many wait to be written.
    Busy,
    /// The store does not answer, and is not asked for a while.
    Down,
}

impl StoreError {
    /// All of them.
    pub const ALL: [StoreError; 9] = [
        StoreError::Missing,
        StoreError::Corrupt,
        StoreError::Incompatible,
        StoreError::Unreadable,
        StoreError::Denied,
        StoreError::Full,
        StoreError::Slow,
        StoreError::Busy,
        StoreError::Down,
    ];

    /// As it is written in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            StoreError::Missing => "missing",
            StoreError::Corrupt => "corrupt",
            StoreError::Incompatible => "incompatible",
            StoreError::Unreadable => "unreadable",
            StoreError::Denied => "denied",
            StoreError::Full => "full",
            StoreError::Slow => "slow",
            StoreError::Busy => "busy",
            StoreError::Down => "down",
        }
    }
}

/// What happened in a store since it was asked last. Ranks that are threads of one process share a store: one of them tells it.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoreReport {
    /// Chunks that are there now and were not.
    pub stored: Vec<ChunkKey>,
    /// Chunks that were there and are not now.
    pub gone: Vec<ChunkKey>,
    /// Chunks that were removed to make room.
    pub evicted: u64,
    /// Operations that succeeded, with the bytes they moved and the seconds they took.
    pub operations: Vec<(Tier, StoreOperation, u64, f64)>,
    /// Operations that failed.
    pub errors: Vec<(Tier, StoreError, u64)>,
    /// Bytes of files in the folder.
    pub used_bytes: u64,
}
