//! Studies of the time to first token: what was asked for, every sample that was taken, and what follows from them. An engine
//! runs the requests; what is said about the samples are pure functions on facts.

#![forbid(unsafe_code)]

mod accuracy;
pub mod bench;
pub mod busy;
mod charts;
pub mod compare;
mod csv;
pub mod dump;
mod error;
pub mod forecast;
#[cfg(test)]
mod kit;
pub mod method_spec;
pub mod methods;
mod notes;
mod order;
mod page;
mod predicted;
mod rows;
pub mod scalar;
mod scaling;
pub mod schema;
pub mod sizing;
pub mod terminal;

pub use charts::charts;
pub use error::{Error, Result};
pub use schema::Study;
