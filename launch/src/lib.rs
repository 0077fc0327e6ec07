//! Composing coordinator and workers into the `tributary` command. Parses, builds, runs; computes nothing itself.

mod args;
mod bench;
mod caches;
mod carrier;
pub mod command;
mod compare;
mod control_group;
mod device;
pub mod doctor;
mod dump;
mod environment;
mod failure;
mod follow;
pub mod group;
mod help;
mod highlight;
mod machine;
mod model;
pub mod mpirun;
mod plan_command;
mod prefill;
mod progress;
mod ranks;
mod request;
mod session;
mod spoilt;
mod stdout;
mod taken;

pub use model::shape_of;
