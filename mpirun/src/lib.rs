//! Ranks of one job under `mpirun` or `srun`: the line that starts them, whether this program and that launcher belong together,
//! watching them to their end, and another attempt where that may help.
//!
//! What ranks have to say comes as lines on standard error ([`tributary_engine::marker`]). All that they are told is by signals through
//! their launcher. Nothing is decided here about a request; that is the ranks' affair.

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
