//! A scaling study of the time to first token: what was asked for, every sample that was taken, and what follows from them.
//! Pure functions on facts; nothing here runs a request.

mod accuracy;
mod charts;
pub mod csv;
#[cfg(test)]
mod kit;
pub mod notes;
pub mod order;
pub mod page;
pub mod scaling;
pub mod schema;
pub mod statistics;
mod svg;
pub mod terminal;

pub use charts::charts;
pub use schema::Study;
pub use svg::Chart;
