//! Plans of requests, their costs and their predicted times. Pure: it knows token ids, shapes and
//! times, but no text, no tokenizer, no tensor, and no channel to the ranks.

#![forbid(unsafe_code)]

pub mod cost;
mod directory;
mod error;
pub mod forecast;
#[cfg(test)]
mod kit;
mod machine;
pub mod outlook;
mod plan;
mod planner;
mod reservation;
mod shape;
mod slicing;
mod vision;

pub use directory::{Directory, StoreInventory};
pub use error::{Error, Result};
pub use machine::{FreeMemory, GroupShape, Machine, MemoryOf};
pub use plan::{
    Cached, Conversation, Draft, EvictionWish, Held, MethodInputs, PlanInput, Planned, RequestSettings, Tokens,
    check_weights, pictures, plan, window_of,
};
pub use planner::{GroupSurvey, Planner, Started, chunk_cache_bytes};
pub use reservation::{Reservation, Room, STEP_TOKENS, TokenBytes};
pub use shape::{ModelShape, WindowShape};
pub use slicing::Slicing;
pub use vision::VisionShape;
