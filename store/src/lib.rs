//! Chunks that outlive the process that prefilled them: their keys before RoPE and their values, in one file each.
//!
//! A file says whose it is, and its seal covers what it says; every layer is verified when it is read. What is damaged, of another
//! model, or not there is a miss, never an error of a request. A [`Store`] writes behind the first token and reads ahead of use, on
//! threads of its own. The layout stands in `docs/store.md`.

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
