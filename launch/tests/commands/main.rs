//! Commands as users run them, but for services and `quality`: one program, which is linked once.

mod adapters;
mod bench;
mod calibrate_layers;
mod calibrate_trace;
mod config_file;
mod errors;
mod gguf;
#[path = "../kit/mod.rs"]
mod kit;
mod load;
mod models_beside;
mod plan;
mod prefill;
mod reference;
mod requests;
mod train;
