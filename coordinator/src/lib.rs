//! A request from its intake to its answer: chunks, plan, dispatch, report. Knows token ids and times; touches no tensor,
//! and the workers only through [`tributary_protocol`].

#![forbid(unsafe_code)]

mod auxiliary;
mod chunking;
pub mod conductor;
mod conversation;
pub mod cost;
pub mod date;
mod directory;
pub mod dispatch;
mod error;
pub mod forecast;
mod free_text;
mod intake;
mod jinja;
#[cfg(test)]
mod kit;
mod machine;
pub mod outlook;
mod plan;
mod planner;
pub mod report;
mod request;
pub mod scheduler;
mod shape;
mod template;
mod tokenize;
mod trace_calibration;

pub use auxiliary::{AuxiliaryReader, DRAFT_OPTION};
pub use chunking::{Chunking, Cut, Join};
pub use conversation::{ChatOptions, Ending, Message, OWN_NAMES, TemplateValues};
pub use directory::{Directory, StoreInventory};
pub use dispatch::{Answer, Clock};
pub use error::{Error, Result};
pub use intake::{
    Intake, Prefix, Prepared, TEXT_CHUNK_TOKENS, prepare, prepare_documents, prepare_ids, prepare_led, prepare_text,
    prepare_turns,
};
pub use machine::{FreeMemory, GroupShape, Machine, MemoryOf};
pub use plan::{Cached, EvictionWish, Held, MethodInputs, PlanInput, Planned, RequestSettings, check_weights, plan};
pub use planner::{GroupSurvey, Planner, Started, chunk_cache_bytes};
pub use report::{Environment, Report, report};
pub use request::{Document, Request};
pub use shape::ModelShape;
pub use template::{Placed, PromptPart, Talk, Template, Written};
pub use tokenize::{Piece, TextStream, Tokenizer};
pub use trace_calibration::TraceCalibration;
