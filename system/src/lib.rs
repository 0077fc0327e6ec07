//! What the operating system tells of the host, its processor, its memory and its processes; which commit the program is of;
//! files that are there whole or not at all; and numbers of bytes and tokens as people write them.
//!
//! This crate knows none of the others. Only here is `/proc` read, or the file system of control groups. What cannot be
//! read is absent, never guessed. `/proc` is read field by field: a kernel or a container that leaves out a field that nobody
//! asks for takes nothing from the others.

#![forbid(unsafe_code)]

mod control_group;
pub mod cores;
mod error;
mod fields;
pub mod file;
pub mod host;
pub mod memory;
pub mod network;
pub mod process;
pub mod processor;
pub mod program;
pub mod size;
pub mod token_count;
pub mod work;

pub use control_group::ControlGroups;
pub use error::{Error, Result};
