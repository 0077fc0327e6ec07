//! Answers to the one question a layer asks: which keys and values do these rows attend to, where do they live, and at which
//! positions do they stand. One type an answer.

mod all_gather;
mod anchored;
mod chunk_prefill;
mod compression;
mod decode;
mod delivery;
mod drift;
mod free_probe;
mod look_ahead;
mod mix;
mod oracle;
mod parallel;
mod pass_q;
mod passing;
mod query_probe;
mod reading;
mod received;
mod replicated;
mod replication;
mod ring;
mod ring_queries;
mod rounds;
mod selected;
mod sparse_probe;

pub use all_gather::AllGather;
pub use anchored::Anchored;
pub use chunk_prefill::{ChunkPrefill, ChunkRows, OutgoingRows};
pub use compression::Compression;
pub use decode::{Decode, DecodeRow, SharedCaches};
pub use drift::{CachedLayers, DriftPass, cached_rows};
pub use free_probe::{ChosenHeads, FreeProbe, FreeReadings};
pub use look_ahead::LookAhead;
pub use mix::Mix;
pub use oracle::OraclePass;
pub use parallel::Parallel;
pub use pass_q::PassQ;
pub use passing::{Passing, PassingBlock};
pub use query_probe::QueryProbe;
pub use reading::{Reading, Watched};
pub use replicated::Replicated;
pub use replication::Replication;
pub use ring::Ring;
pub use ring_queries::RingQueries;
pub use selected::SelectedOnly;
pub use sparse_probe::SparseProbe;
