//! An engine behind HTTP: chat completions as OpenAI's clients know them, with `documents` beside the messages, plain and
//! streamed; health, readiness and metrics.
//!
//! The only asynchronous code. It waits for sockets; what computes is the engine, on threads of its own, behind a
//! [`Client`](tributary_engine::Client).

mod chat;
mod error;
mod guard;
mod input;
mod metrics;
mod output;
mod routes;
mod server;
mod shared;

pub use server::{Error, Options, Service};
