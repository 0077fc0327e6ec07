//! Prompts that are prefilled here and decoded by another program.

pub mod handlers;
pub mod held;
mod prefilling;
pub mod relay;
mod rows;
pub mod told;
