//! A scaling study of the time to first token: what was asked for, every sample that was taken, and what follows from them.
//! Pure functions on facts; nothing here runs a request.

pub mod schema;

pub use schema::Study;
