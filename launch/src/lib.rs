//! Composing coordinator and workers into the `tributary` command.

pub mod group;
