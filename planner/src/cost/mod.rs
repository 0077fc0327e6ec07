//! What a plan comes to, counted: FLOPs, bytes, groups of messages, memory. Pure functions of plan, world and model, which know no
//! machine's rates: [`forecast`](crate::forecast) says how long all that takes.

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
mod work;

pub use decoding::Decoding;
pub use evicting::Evicting;
pub use groups::groups;
pub use running::running_bytes;
pub use selected::Selected;
pub use work::{PhaseWork, Products, RankWork, Work, work, work_of};
