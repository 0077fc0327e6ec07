//! HTTP service of an engine: chat completions in OpenAI's form, with `documents` beside the
//! messages, plain and streamed; health, readiness and metrics.
//!
//! The only asynchronous code. It waits for sockets; the engine computes, on its own threads,
//! behind a [`Client`](tributary_engine::Client).

#![forbid(unsafe_code)]

mod activity;
mod answering;
mod arrival;
mod body;
mod chunks;
mod completions;
mod connections;
mod deadline;
mod decoder;
mod delivery;
mod echo;
mod error;
mod exporter;
mod guard;
mod hand_over;
mod input;
mod limits;
mod metrics;
mod openapi;
mod origin;
mod output;
mod page;
mod readers;
mod ready;
mod reasoning;
mod respond;
mod routes;
mod running;
mod server;
mod shared;
mod signals;
mod spoken;
mod status;
mod stops;
mod streaming;
mod upload;

pub use decoder::Decoder;
pub use exporter::{Export, Exporter};
pub use guard::{Access, ApiKeys, Doors};
pub use limits::{AllowedMethods, ClientLimits};
pub use reasoning::ReasoningParser;
pub use server::{Error, Options, Service};
