//! Coordinator and ranks as one thing that answers requests: a model is opened, ranks are started,
//! requests go in and answers come out. Ranks are threads of this process, or the processes of this
//! job.
//!
//! Its configuration is plain data, without a command line. Failures are an [`Error`] with an exit
//! code; only the functions that end a process because of one ([`Ranks::fail`], [`refuse`]) print a
//! line.

#![forbid(unsafe_code)]

mod adapters;
mod answer;
mod answered;
mod asking;
mod auxiliary;
mod beside;
mod carrier;
mod chunk_store;
mod client;
mod config;
mod device;
mod disagreement;
mod drawn;
mod engine;
mod environment;
mod error;
mod follow;
mod generation_config;
mod held;
mod highlight;
mod machine;
pub mod marker;
mod model;
mod question;
mod ranks;
mod run_config;
mod spoilt;
mod synthetic;
pub mod tokenizer_trial;
mod warming;

pub use adapters::ModelAdapters;
pub use answered::Answered;
pub use asking::ask_all;
pub use auxiliary::AuxiliaryModel;
pub use beside::Beside;
pub use carrier::Carrier;
pub use chunk_store::ChunkStoreConfig;
pub use client::{Client, Conversation, Prompt, PromptText, TextStream};
pub use config::{Config, DeviceKind, Dtype, GroupConfig, IntakeConfig, KvDtype, ModelConfig, TemplateUse, Transport};
pub use device::{Gpu, RankDevice};
pub use disagreement::Disagreement;
pub use drawn::Drawn;
pub use engine::Engine;
pub use error::{Error, Result, one_line};
pub use follow::follow;
pub use generation_config::SamplingDefaults;
pub use highlight::highlighted;
pub use machine::{available_bytes, check_threads};
pub use model::{ModelFolder, ModelHash, folder_of, shape_of};
pub use question::{Led, Question};
pub use ranks::{
    Attendance, Group, GroupSettings, LauncherInfo, ProcessFailure, Pulses, Ranks, Seat, Seated, launcher, narrowest,
    program_hash, reap, refuse,
};
pub use run_config::RunConfig;
pub use spoilt::{explained, spoilt};
pub use synthetic::Synthetic;
pub use tributary_comm::Pulse;
pub use tributary_coordinator::Clock;
pub use tributary_coordinator::conductor::Reader;
pub use tributary_coordinator::conductor::{Breakage, Ended, Observed, Observer, Occupation, Prefilled, Stage, Tally};
pub use tributary_coordinator::conductor::{Done, Kept, NotTaken, RequestFailure, Sink, Update, Work};
pub use tributary_coordinator::scheduler::Limits;
pub use warming::{Warmed, WarmedAll};
