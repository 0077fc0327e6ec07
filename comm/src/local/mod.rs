//! Ranks as threads of one process. Tensors change hands without a copy.
//!
//! A group is made of [`seats`]; each goes to one thread, which takes it ([`Seat::take`]). A rank that panics ends the group;
//! a rank that drops its communicator ends it only if another makes a call that it has not made.

mod seat;

pub use self::seat::{LocalEndpoint, LocalGroup, Seat, seats};
pub use crate::group::FIRST_DEADLINE;
use crate::group::Member;

/// The communicator of one rank. It stays on the thread that made it.
pub type Local = Member<LocalEndpoint>;

impl Local {
    /// Calls of the group that some rank has not finished. For tests of memory.
    pub fn open_calls(&self) -> usize {
        self.endpoint().hub().open_calls()
    }
}
