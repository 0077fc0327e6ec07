//! Counted costs of a plan: FLOPs, bytes, groups of messages, memory. Pure functions of plan, world
//! and model without a machine's rates: [`forecast`](crate::forecast) predicts the time.

pub mod beside;
pub mod bytes;
mod decoding;
pub mod evicting;
mod groups;
mod homes;
pub mod memory;
mod packing;
mod running;
mod selected;
mod sight;
#[cfg(test)]
mod tests;
mod windows;
mod work;

pub use decoding::Decoding;
pub use evicting::Evicting;
pub use groups::groups;
pub use running::running_bytes;
pub use selected::Selected;
pub use windows::{token_bytes, windows_from};
pub use work::{PhaseWork, Products, RankWork, Work, work, work_of};
