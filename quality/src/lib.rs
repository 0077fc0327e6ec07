//! What an answer is worth: scores as the public long-context suites define them, and statistics that say how sure they are.

pub mod rows;
pub mod score;
pub mod statistics;
