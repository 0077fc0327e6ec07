//! Ranks as threads of one process. Tensors change hands without a copy.
//!
//! A group is made of [`seats`]; each goes to one thread, which takes it ([`Seat::take`]). A rank
//! that panics ends the group; a rank that drops its communicator ends it only if another makes a
//! call that it has not made.

mod seat;

pub use self::seat::{Local, LocalEndpoint, LocalGroup, Seat, seats};
pub use crate::group::FIRST_DEADLINE;
