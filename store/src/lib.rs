//! Chunks that outlive the process that prefilled them: their keys before RoPE and their values, in
//! one file each.
//!
//! A file states its identity under a seal; every layer is verified when it is read. A chunk that
//! is damaged, of another model, or absent is a miss, never an error of a request. A [`Store`]
//! writes after the first token and reads ahead of use, on its own threads. `docs/store.md`
//! describes the layout.

#![forbid(unsafe_code)]

mod beyond;
mod chunk_file;
mod damage;
mod folder;
mod identity;
mod index;
mod readers;
mod remote;
mod seal;
mod shared;
mod standing_still;
mod store;
mod tally;
pub mod upkeep;
mod writer;

pub use bytes::Bytes;
pub use chunk_file::{ChunkFile, Description, LayerBytes, encode};
pub use damage::Damage;
pub use folder::{Entry, Folder};
pub use identity::{Identity, Numbers, Shape};
pub use readers::Steps;
pub use remote::{Fetch, Operation, OperationCounters, Reason, Remote, RemoteCounters, RemoteError, RemoteLimits};
pub use seal::Secret;
pub use shared::Settings;
pub use standing_still::Computing;
pub use store::{Store, StoredChunk};
pub use writer::{Append, OpenError, Writing};
