//! Ranks of one job under `mpirun` or `srun`: the line that starts them, whether this program and
//! that launcher belong together, watching them to their end, and another attempt where that may
//! help.
//!
//! Messages of ranks come as lines on standard error ([`tributary_engine::marker`]). Orders to them
//! are signals through their launcher. Decisions about requests are the ranks', not this crate's.

#![forbid(unsafe_code)]

pub mod attempts;
pub mod blocks;
pub mod filter;
pub mod flavour;
pub mod hosts;
pub mod line;
pub mod outcome;
pub mod supervise;
pub mod sweep;
