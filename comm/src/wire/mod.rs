//! The messages that coordinator and workers exchange, and their framing.
//!
//! The coordinator sends [`Plan`]s to rank 0, which broadcasts them; rank 0 answers with [`Event`]s. The types carry facts
//! and pure arithmetic on them, no behaviour.

mod chunk_key;
pub mod deal;
mod frame;
mod link;
mod method;
mod phase;
mod plan;
mod report;

pub use chunk_key::{ChunkKey, KeySpace};
pub use frame::{FRAME_LIMIT_BYTES, HEADER_BYTES, Header, PROTOCOL_VERSION, decode, decode_header, encode};
pub use link::{Alarm, CoordinatorLink, WorkerLink, link};
pub use method::{Exchange, Importance, InfoFlow, Layout, Method, Score};
pub use phase::Phase;
pub use plan::{Chunk, Order, Plan, Returns, Sampling};
pub use report::{ChunkCacheReport, DeviceMemory, Event, Outcome, RankReport, Span};
