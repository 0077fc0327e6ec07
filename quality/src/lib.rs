//! Quality of answers: tasks with known answers, an evaluation that asks them through an engine
//! with several methods, scores as the public long-context suites define them, and statistics with
//! intervals.
//!
//! Knows no command line and computes no token: the engine answers, and everything that is said
//! about its answers is pure.

#![forbid(unsafe_code)]

pub mod answers;
mod calibrate;
mod calibrate_layers;
mod chunk_sizes;
pub mod cut;
mod decoding;
mod design;
mod dry_run;
mod error;
mod evaluation;
mod eviction;
mod eviction_rows;
mod fit;
mod fitted;
pub mod hops;
mod joined;
#[cfg(test)]
mod kit;
mod lessons;
mod longbench;
mod material;
mod niah;
mod output;
mod overlap;
mod own;
mod page;
mod pages;
mod pairs;
mod passages;
mod points;
mod pool;
mod pooled;
mod random;
mod render;
mod report;
mod report_runs;
pub mod rows;
mod ruler;
mod run;
pub mod score;
mod selected;
mod split;
pub mod statistics;
pub mod suite;
mod suites;
mod tables;
mod training;

pub use calibrate::{LEAST_ALPHA, calibrate};
pub use calibrate_layers::{LayerTrial, Tried, depths};
pub use design::{Arm, Asked, Design};
pub use dry_run::dry_run;
pub use error::{Error, Result};
pub use evaluation::{Evaluation, Request};
pub use eviction::EvictionPoint;
pub use lessons::{Lesson, lessons};
pub use output::Output;
pub use overlap::Overlap;
pub use page::page;
pub use points::{Paired, Point};
pub use pool::{Wanted, pool};
pub use pooled::{Pooled, PooledDifference, PooledShare};
pub use render::render;
pub use report::{FailureRow, Origin, Report, origin, report};
pub use report_runs::{ReportRun, ReportRuns, Study};
pub use run::run;
pub use selected::Rows;
pub use split::{Part, Split};
pub use suite::Suite;
pub use suites::open;
pub use training::{Trained, Training, intake};
pub use tributary_train::{AdapterKind, Objective, Reader, Settings, Sizes, Wish};
