//! Composing coordinator and workers into the `tributary` command. Parses, builds, runs; computes nothing itself.

mod args;
pub mod command;
mod compare;
mod dump;
mod failure;
pub mod group;
mod highlight;
mod machine;
mod model;
mod prefill;
mod progress;
mod request;
mod session;
mod stdout;
