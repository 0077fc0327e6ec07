//! A job that a launcher has started, as it is seen from outside: what mpirun's own blocks say, what becomes of each line, and what the end of the
//! job means. Pure; whoever starts and ends the launcher's process stands elsewhere.

pub mod blocks;
pub mod filter;
pub mod outcome;
