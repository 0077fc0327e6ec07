//! Studies of the time to first token: their designs, every sample, and the conclusions. An engine
//! runs the requests; statements about the samples are pure functions of facts.

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
pub mod twin;

pub use charts::charts;
pub use error::{Error, Result};
pub use schema::Study;
