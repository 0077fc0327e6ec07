//! The `tributary` command around the engine. Parses, builds, runs; computes nothing itself.

mod args;
mod bench;
pub mod command;
mod compare;
mod config;
mod config_file;
pub mod doctor;
mod exporting;
mod failure;
mod help;
mod launch_command;
mod load;
mod methods;
mod plan_command;
mod prefill;
mod progress;
mod quality;
mod ranks;
mod reference;
mod request;
mod serve;
pub mod stdout;
mod store_command;
mod store_warm;
mod template_kwargs;
mod train;
mod values;
