//! Facts from the operating system: the host, its processor, its memory and its processes. Also the
//! program's commit, files that are written whole or not at all, and numbers of bytes and tokens as
//! people write them.
//!
//! This crate depends on none of the others. It alone reads `/proc` and the file system of control
//! groups. Unreadable facts are absent, never guessed. `/proc` is read field by field: a field that
//! a kernel or a container leaves out does not affect the others.

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
