//! A service under faults: of its ranks in every phase, of its clients, and of its surroundings. In
//! every case, a client gets the whole right answer or an error, in time; and the service goes on,
//! or ends with its exit code. Built with the features `mpi` and `failpoints`.
//! `cargo test .. -- --nocapture` prints a table.

mod clients;
mod crowd;
mod ranks;
mod surroundings;

#[path = "../kit/mod.rs"]
mod kit;
