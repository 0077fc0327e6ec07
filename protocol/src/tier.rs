//! Places of chunks that were prefilled before, and reports of the places beyond a rank's memory.

use crate::ChunkKey;

/// A place of cached chunks, the nearest first.
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
    /// All tiers.
    pub const ALL: [Tier; 3] = [Tier::Memory, Tier::Disk, Tier::Remote];

    /// Name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Memory => "memory",
            Tier::Disk => "disk",
            Tier::Remote => "remote",
        }
    }
}

/// An operation on a chunk in a place beyond a rank's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum StoreOperation {
    /// Reading its keys and values.
    Read,
    /// Writing it whole.
    Write,
}

impl StoreOperation {
    /// All operations.
    pub const ALL: [StoreOperation; 2] = [StoreOperation::Read, StoreOperation::Write];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            StoreOperation::Read => "read",
            StoreOperation::Write => "write",
        }
    }
}

/// Reason for which a chunk in a store was unusable or was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum StoreError {
    /// Expected there, and missing.
    Missing,
    /// Different from what was written.
    Corrupt,
    /// Of another model, type of numbers, prefix, method or version.
    Incompatible,
    /// The system fails to read or write it.
    Unreadable,
    /// Read or write access is denied.
    Denied,
    /// The store is full.
    Full,
    /// The operation took too long.
    Slow,
    /// Too many chunks wait to be written.
    Busy,
    /// The store does not answer, and gets no requests for a while.
    Down,
}

impl StoreError {
    /// All errors.
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

    /// Name in reports and metrics.
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

/// Events in a store since its last report. Ranks that are threads of one process share a store,
/// and one of them reports it.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoreReport {
    /// Chunks added to it.
    pub stored: Vec<ChunkKey>,
    /// Chunks gone from it.
    pub gone: Vec<ChunkKey>,
    /// Number of chunks removed to make room.
    pub evicted: u64,
    /// Operations that succeeded, with their bytes and seconds.
    pub operations: Vec<(Tier, StoreOperation, u64, f64)>,
    /// Operations that failed.
    pub errors: Vec<(Tier, StoreError, u64)>,
    /// Bytes of files in the folder.
    pub used_bytes: u64,
}
