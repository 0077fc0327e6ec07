//! Training of adapters from samples of token ids, with a frozen model: rows around chunks (KV
//! Packet), and rows after the prompt with low-rank matrices (LookaheadKV).
//!
//! Knows no text and no command line. A sample comes as token ids, ranks as a communicator; it
//! computes with the worker's model and kernels, so that training fits serving. Gradients flow by
//! candle's autograd through kernels whose backward passes leave the frozen weights out.

#![forbid(unsafe_code)]

mod adamw;
mod auxiliary;
mod checkpoint;
mod error;
mod gaze;
mod lookahead;
mod memory;
mod normal;
mod packet;
mod paid;
mod pass;
mod pupil;
mod ranks;
mod reader;
mod received;
mod record;
mod sample;
mod settings;
mod sums;
mod teacher;
mod trainer;
mod wish;

pub use auxiliary::{Auxiliary, TOP_SHARE};
pub use error::{Error, Result};
pub use lookahead::Lookahead;
pub use memory::Need;
pub use packet::Packet;
pub use pupil::{Made, Pupil};
pub use ranks::on_threads;
pub use reader::{Objective, Reader, Sizes};
pub use record::StepRow;
pub use sample::{Sample, digest};
pub use settings::Settings;
pub use teacher::{Taught, teach};
pub use trainer::{Job, Summary, train};
pub use tributary_model::AdapterKind;
pub use wish::Wish;
